"""Summary of a run at a fixed size, however long it is: `top.npz`.

It has the run's steps, samples and readings of the input pipeline in a few thousand cells, the
distributions of steps and samples, the longest phases and the list of segments, and is rewritten
when a segment is sealed: the first view of a long run reads the manifest and this file alone. A
reader adds the rows of newer segments.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from typing import Any

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged, checked_ns, decode_frame, encode_frame, pack
from gpu_util_callback.recording.fold import REDUCTIONS, Fold
from gpu_util_callback.recording.manifest_facts import encodable
from gpu_util_callback.recording.schema import STEP_SERIES, TABLES
from gpu_util_callback.recording.segments import SegmentInfo, Tables, checked_frame, complete, concatenate
from gpu_util_callback.recording.summary import ColumnDistributions, step_series


def stretch_name(first: int, last: int) -> str:
    """Return the name of the top of segments `first` to `last`, a stretch of a long run."""
    return f"top-{first:06d}-{last:06d}.npz"


STEP_CELLS = 8192
SAMPLE_CELLS = 2048
SAMPLE_NS = 1 << 16  # of a cell of samples, at first
MOST_COLUMNS = 4096
LONGEST = 2048  # phases
# What a fold keeps of measured columns, and of the place of its rows.
_STATS = ("low", "high", "total", "count")
_PLACES = {"first": ("step", "start"), "last": ("step", "end")}
_SAMPLE_PLACES = {"first": ("time",)}


# Readings of the training's input pipeline, folded as samples are: the work of each stage since the
# reading before, in ns, by the stage's name after `STAGE`; "batches" made in that time; "step".
PIPELINE, STAGE = "pipeline", "stage "


def pipeline_readings(tables: Tables) -> Tables:
    """Return the readings among new rows as samples; {} without any."""
    rows = tables.get("pipeline")
    train = np.zeros(0, bool) if rows is None else rows["which"] == "train"
    if rows is None or not train.any():
        return {}
    times, at = np.unique(rows["time_ns"][train], return_inverse=True)
    names, named = np.unique(rows["stage"][train].astype(str), return_inverse=True)
    work, is_read = np.zeros((len(names), len(times))), np.zeros((len(names), len(times)), bool)
    np.add.at(work, (named, at), np.maximum(rows["processing_ns"][train], 0))
    is_read[named, at] = True
    batches, step = np.zeros((2, len(times)))
    root = rows["parent"][train] < 0
    np.maximum.at(batches, at[root], rows["elements"][train][root])
    np.maximum.at(step, at, rows["step"][train])
    stages = zip(names.tolist(), np.where(is_read, work, np.nan), strict=True)
    return {
        PIPELINE: {"time_ns": times, "batches": batches, "step": step} | {f"{STAGE}{name}": row for name, row in stages}
    }


def statistics(columns: Any, values: np.ndarray) -> dict[str, tuple[Any, np.ndarray]]:
    """Return the parts of `Fold.add` for measured values, float[columns, n], NaN = absent."""
    is_measured = ~np.isnan(values)
    numbers_or_zero = values if is_measured.all() else np.where(is_measured, values, 0)
    return {
        "low": (columns, values),
        "high": (columns, values),
        "total": (columns, numbers_or_zero),
        "count": (columns, is_measured),
    }


class Top:
    """A run's steps by number and its samples by time, folded; times are since `origin_ns`.

    A cell has minimum, maximum, sum and count of each column, and where its rows lie: `first` and
    `last` "step", `first` "start" and `last` "end" of steps, `first` "time" of samples.

    Attributes:
        values: number of values added.
        phases: the longest ones, in chronological order.
        segments: the sealed ones in it.
        stretches: first and last segment of each stretch of a long run, which has a top of its own.
        covered: number of the last segment in it; -1 = none.
    """

    def __init__(self, origin_ns: int):
        self.origin_ns = origin_ns
        self.steps = Fold(STEP_CELLS, first=None)
        self.summary = ColumnDistributions()
        self.values = 0
        self.phases = complete("phases", {})
        self.segments: list[SegmentInfo] = []
        self.stretches: list[tuple[int, int]] = []
        self.covered = -1
        self._cells: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None
        self._samples: dict[str, Fold] = {}
        self._stored: dict[str, Callable[[], Fold]] = {}  # groups that nobody asked for yet

    # --- its cells --------------------------------------------------------------------------------

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys([*self._samples, *self._stored]))

    def samples(self, group: str) -> Fold | None:
        """Return the samples of a group, None where there are none."""
        fold = self._samples.get(group)
        if fold is None and group in self._stored:
            fold = self._samples[group] = self._stored[group]()
        return fold

    @property
    def nbytes(self) -> int:
        """Return about how much memory its cells take."""
        return self.steps.nbytes + sum(sample.nbytes for sample in list(self._samples.values()))

    @property
    def step_range(self) -> tuple[int, int]:
        """The first and the last step's number; (0, -1) without steps."""
        if not self.steps.used:
            return 0, -1
        return int(self.steps.of("first", "step").min()), int(self.steps.of("last", "step")[-1])

    def step_cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (first step, last step, start, end) of the cells with steps, int64[n] each."""
        if self._cells is None:
            self._cells = self._step_cells()
        return self._cells

    def _step_cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        if not self.steps.used:
            return tuple(np.zeros((4, 0), np.int64))  # type: ignore[return-value]
        first, last = (self.steps.of(part, "step") for part in ("first", "last"))
        has_steps = first <= last
        start = np.maximum.accumulate(self.steps.of("first", "start")[has_steps])
        end = np.maximum(self.steps.of("last", "end")[has_steps], start)
        return first[has_steps], last[has_steps], start, end

    def start_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return float64: when these steps began; NaN beyond the last one."""
        first, last, start, end = self.step_cells()
        if not len(first):
            return np.full(len(numbers), np.nan)
        at = np.clip(np.searchsorted(first, numbers, "right") - 1, 0, None)
        share = np.clip((numbers - first[at]) / (last[at] - first[at] + 1), 0, 1)
        begins = start[at] + share * (end[at] - start[at])
        return np.where(numbers > last[-1], np.nan, begins)

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return int64: the step under way at these times."""
        first, last, start, end = self.step_cells()
        if not len(first):
            return np.zeros(len(since_ns), np.int64)
        at = np.clip(np.searchsorted(start, since_ns, "right") - 1, 0, None)
        share = np.clip((since_ns - start[at]) / np.maximum(end[at] - start[at], 1), 0, 1)
        rows = last[at] - first[at] + 1
        return first[at] + np.minimum(np.floor(share * rows).astype(np.int64), rows - 1)

    # --- adding rows ------------------------------------------------------------------------------

    def add_segment(self, info: SegmentInfo, tables: Tables, samples: Tables) -> None:
        """Add the rows of a sealed segment, and list it."""
        self.segments.append(info)
        self.covered = info.last
        self.add(tables, samples)

    def add(self, tables: Tables, samples: Tables) -> None:
        """Add rows that follow those added before."""
        self.summary.add(tables, samples)
        self._add_phases(tables)
        self.fold(tables, {**samples, **pipeline_readings(tables)})

    def _add_phases(self, tables: Tables) -> None:
        if "phases" in tables:
            self.phases = longest(concatenate("phases", [self.phases, tables["phases"]]), LONGEST)

    def fold(self, tables: Tables, samples: Tables) -> None:
        """Add rows to the cells alone; of the tables, only steps are used."""
        self._add_steps(tables)
        for group, columns in samples.items():
            if len(columns["time_ns"]) and len(columns) > 1:
                self.values += len(columns["time_ns"]) * (len(columns) - 1)
                self._samples[group] = self._grown(self.samples(group), columns)

    def _add_steps(self, tables: Tables) -> None:
        steps = tables.get("steps")
        if steps is None or not len(steps["step"]):
            return
        self._cells = None
        number = np.maximum(steps["step"], 0)
        start = np.maximum(steps["start_ns"] - self.origin_ns, 0)
        end = start + np.maximum(steps["duration_ns"], 0)
        self.values += len(number) * len(STEP_SERIES)
        self.steps.add(
            number,
            first=(_PLACES["first"], np.stack([number, start])),
            last=(_PLACES["last"], np.stack([number, end])),
            **statistics(STEP_SERIES, step_series(steps)),
        )

    def _grown(self, fold: Fold | None, columns: Mapping[str, np.ndarray]) -> Fold:
        """Return a group's fold with samples added, in place; None: a new one."""
        fold = Fold(SAMPLE_CELLS, SAMPLE_NS, first=None) if fold is None else fold
        since = np.maximum(columns["time_ns"] - self.origin_ns, 0)
        names = [name for name in columns if name != "time_ns"]
        values = np.stack([columns[name] for name in names]).astype(np.float64)
        fold.add(since, first=(("time",), since[np.newaxis]), **statistics(names, values))
        return fold

    def with_rows(self, tables: Tables, samples: Tables) -> "Top":
        """Return another top that has these rows, too; this one stays as it is.

        Samples are folded once somebody asks for their group.
        """
        other = copy(self)
        other.steps, other.summary = deepcopy(self.steps), self.summary.copy()
        other.summary.add(tables, samples)
        other._add_steps(tables)
        other._add_phases(tables)
        samples = {**samples, **pipeline_readings(tables)}
        other._samples = {}
        other._stored = {
            group: partial(self._later, group, samples) for group in dict.fromkeys([*self.groups, *samples])
        }
        return other

    def _later(self, group: str, samples: Tables) -> Fold:
        fold, columns = self.samples(group), samples.get(group)
        if columns is None or not len(columns["time_ns"]) or len(columns) < 2:
            return Fold(SAMPLE_CELLS, SAMPLE_NS, first=None) if fold is None else fold
        return self._grown(deepcopy(fold), columns)

    # --- its file ---------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """Return the bytes of `top.npz`."""
        phases, planes = encode_frame(self.phases, TABLES["phases"])
        about: dict[str, Any] = {
            "phases": phases,
            "origin_ns": self.origin_ns,
            "summary": self.summary.state(),
            "folds": {},
        }
        arrays = {
            "phases": planes,
            "segments": np.array(self.segments, np.int64).reshape(-1, len(SegmentInfo._fields)),
            "stretches": np.array(self.stretches, np.int64).reshape(-1, 2),
        }
        for name in ["steps", *self.groups]:
            fold = self.steps if name == "steps" else self.samples(name)
            if fold is None or not fold.used:
                continue
            parts = {part: fold.columns(part) for part in (*_STATS, *_PLACES) if fold.columns(part)}
            place = {"width": fold.width, "first": fold.first, "used": fold.used}
            about["folds"][name] = {**place, "columns": parts}
            arrays |= {f"{name}/{part}": fold.matrix(part) for part in parts}
            count = arrays[f"{name}/count"]
            mean = arrays.pop(f"{name}/total") / np.maximum(count, 1)
            arrays[f"{name}/mean"] = mean.astype(np.float32)
            arrays[f"{name}/count"] = count.astype(np.uint32)
        # These floats hardly compress; a higher level would only cost time.
        return pack(about, arrays, level=1)

    @classmethod
    def unpack(cls, container: Container, on_damage: Callable[[Damaged], None]) -> "Top":
        """Return the top of a file.

        Args:
            on_damage: called when a group of samples turns out to be damaged, at its first use; the
                group is empty then.

        Raises: Damaged.
        """
        index = container.index
        try:
            top = cls(checked_ns(index["origin_ns"]))
            top.summary = ColumnDistributions.restore(index["summary"])
            top.phases = _phases_of(container)
            top.segments = [SegmentInfo(*row) for row in _integers(container, "segments", len(SegmentInfo._fields))]
            top.stretches = [(first, last) for first, last in _integers(container, "stretches", 2)]
            top.covered = max((info.last for info in top.segments), default=-1)
            folds = {encodable(str(name)): _checked(about) for name, about in index["folds"].items()}
            if "steps" in folds:
                top.steps = _restored(container, "steps", folds.pop("steps"), STEP_CELLS, _PLACES)
            top._stored = {
                name: partial(_samples_of, container, name, about, on_damage) for name, about in folds.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if isinstance(error, Damaged):
                raise
            raise Damaged(f"not a top: {error!r}") from error
        return top


def _integers(container: Container, name: str, width: int) -> list[list[int]]:
    array = container.array(name)
    if array.dtype != np.int64 or array.ndim != 2 or array.shape[1] != width:
        raise Damaged(f"not a top: its list of {name} makes no sense")
    return array.tolist()


def _checked(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a fold. Raises: Damaged if it claims too much."""
    width, first, used = about["width"], about["first"], about["used"]
    if type(width) is not int or not 0 < width < 1 << 62 or width & (width - 1):
        raise Damaged("cells of an impossible width")
    if type(first) is not int or not 0 <= first < 1 << 62:
        raise Damaged("cells that begin at an impossible place")
    if type(used) is not int or not 0 < used <= STEP_CELLS:
        raise Damaged(f"more than {STEP_CELLS} cells claimed")
    if max(map(len, about["columns"].values())) > MOST_COLUMNS:
        raise Damaged(f"more than {MOST_COLUMNS} columns claimed")
    return about


def _restored(
    container: Container, name: str, about: Mapping[str, Any], size: int, places: Mapping[str, Sequence[str]]
) -> Fold:
    """Return a fold as stored, which has at least these columns. Raises: Damaged, KeyError."""
    fold, arrays = Fold(size, about["width"]), {}
    for part, columns in about["columns"].items():
        array = container.array(f"{name}/{'mean' if part == 'total' else part}")
        kind = "f" if REDUCTIONS[part].dtype in (np.float32, np.float64) else "iu"
        if array.dtype.kind not in kind or array.shape != (len(columns), about["used"]):
            raise Damaged(f"{name[:40]}: cells of another kind than {part} of {len(columns)}")
        arrays[part] = [encodable(str(column)) for column in columns], array
    columns, mean = arrays["total"]
    count = arrays["count"][1]
    with np.errstate(invalid="ignore"):
        arrays["total"] = columns, np.where(count > 0, mean.astype(np.float64) * count, 0.0)
    fold.restore(about["first"], about["used"], **arrays)
    for part, needed in {"low": (), "high": (), **places}.items():
        fold.matrix(part)
        for column in needed:
            fold.of(part, column)
    return fold


def _samples_of(
    container: Container, name: str, about: Mapping[str, Any], on_damage: Callable[[Damaged], None]
) -> Fold:
    try:
        return _restored(container, name, about, SAMPLE_CELLS, _SAMPLE_PLACES)
    except (Damaged, KeyError, ValueError, TypeError) as error:
        on_damage(error if isinstance(error, Damaged) else Damaged(f"{name[:40]}: {error!r}"))
        return Fold(SAMPLE_CELLS, SAMPLE_NS, first=None)


def longest(rows: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the `count` longest phases, in their original order."""
    lengths = rows["end_ns"] - rows["start_ns"]
    if len(lengths) <= count:
        return rows
    rows_kept = np.sort(np.argsort(-lengths, kind="stable")[:count])
    return {name: values[rows_kept] for name, values in rows.items()}


def _phases_of(container: Container) -> dict[str, np.ndarray]:
    """Return the longest phases as stored. Raises: Damaged, KeyError."""
    frame = checked_frame("phases", container.index["phases"], TABLES["phases"])
    rows = decode_frame(frame, container.array("phases"))
    if rows and set(rows) != set(TABLES["phases"]):
        raise Damaged("phases: columns are missing")
    return rows or complete("phases", {})
