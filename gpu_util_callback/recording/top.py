"""Sums of a run at a fixed size, however long it is: `top.npz`, by which it is drawn and judged.

It has the run's steps, samples and readings of the input pipeline in a few thousand cells, the
distributions of steps and samples, the longest phases and the list of segments, and is rewritten
when a segment is sealed: the first view of a long run reads the manifest and this file alone. A
reader adds the rows of newer segments.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged, checked_ns, pack
from gpu_util_callback.recording.fold import Columns, Fold
from gpu_util_callback.recording.saved import load, save
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import AnyTables, SegmentInfo, Tables, complete, concatenate
from gpu_util_callback.recording.summary import ColumnDistributions, step_series

_Top = TypeVar("_Top", bound="Top")


def stretch_name(first: int, last: int) -> str:
    """Return the name of the top of segments `first` to `last`, a stretch of a long run."""
    return f"top-{first:06d}-{last:06d}.npz"


STEP_CELLS = 8192
SAMPLE_CELLS = 4096
SAMPLE_NS = 1 << 16  # of a cell of samples, at first
LONGEST = 2048  # phases
STATE = "state"  # name of the member without samples


# Readings of the training's input pipeline, folded as samples are: the work of each stage since the
# reading before, in ns, by the stage's name after `STAGE`; "batches" made in that time; "step".
PIPELINE, STAGE = "pipeline", "stage "


def pipeline_readings(tables: AnyTables) -> Tables:
    """Return the readings among new rows as a group of samples; {} without any.

    Rows of `pipeline` are one a stage and reading; the samples have a row a reading and a column a stage: its work, ns.
    Only the training's pipeline counts.
    """
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
    root = rows["parent"][train] < 0  # the last stage, whose elements are batches
    np.maximum.at(batches, at[root], rows["elements"][train][root])
    np.maximum.at(step, at, rows["step"][train])
    stages = zip(names.tolist(), np.where(is_read, work, np.nan), strict=True)
    return {
        PIPELINE: {"time_ns": times, "batches": batches, "step": step} | {f"{STAGE}{name}": row for name, row in stages}
    }


def statistics(columns: Any, values: np.ndarray) -> dict[str, tuple[Any, np.ndarray]]:
    """Return the parts of `Fold.add` for measured values; what is not finite is absent.

    Args:
        columns: their names.
        values: float[columns, n].
    """
    is_measured = np.isfinite(values)
    if not is_measured.all():
        values = np.where(is_measured, values, np.nan)
    numbers_or_zero = values if is_measured.all() else np.where(is_measured, values, 0)
    return {
        "low": (columns, values),
        "high": (columns, values),
        "total": (columns, numbers_or_zero),
        "count": (columns, is_measured),
    }


class StepCells:
    """Steps by number: low, high and count of each series and the exact sum, and where the steps of a cell lie."""

    fold: Fold

    def __init__(self) -> None:
        self.fold = Fold(STEP_CELLS, first=None)

    def add(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add rows of the `steps` table that follow those added before."""
        sums = np.stack([np.maximum(steps[name], 0) for name in STEP_SERIES])
        self.fold.add(np.maximum(steps["step"], 0), sum=(STEP_SERIES, sums), **self._extremes(steps))

    @staticmethod
    def _extremes(steps: Mapping[str, np.ndarray]) -> dict[str, Columns]:
        """Return the parts of `Fold.add` that are no sums.

        Extremes and counts of each series, and where the steps lie.
        """
        values = step_series(steps)
        number, start = np.maximum(steps["step"], 0), steps["start_ns"]
        end = start + np.maximum(steps["duration_ns"], 0)
        return {
            "low": (STEP_SERIES, values),
            "high": (STEP_SERIES, values),
            "count": (STEP_SERIES, ~np.isnan(values)),
            "first": (("first_step", "start_ns"), np.stack([number, start])),
            "last": (("end_step", "end_ns"), np.stack([number + 1, end])),
        }


class SampleCells:
    """A group's samples by time since an origin: low, high, total and count of each column, first and last time.

    Totals are of values rounded to 1/64 (bytes: to integers), so that they are exact and do not
    depend on the pieces in which samples came.
    """

    VERSION = 1
    CAPACITY = SAMPLE_CELLS
    _ROWS_AT_ONCE = 1 << 14

    fold: Fold
    since_ns: int  # the origin, since the epoch

    def __init__(self, since_ns: int = 0):
        self.fold = Fold(self.CAPACITY, SAMPLE_NS, first=None)
        self.since_ns = since_ns

    def add(self, block: Mapping[str, np.ndarray]) -> None:
        """Add samples: `time_ns` and one array per column, NaN = absent."""
        times = np.asarray(block.get("time_ns", ()), np.int64)
        names = [name for name in block if name != "time_ns"]
        for first in range(0, len(times), self._ROWS_AT_ONCE):
            part = slice(first, first + self._ROWS_AT_ONCE)
            values = np.array([np.asarray(block[name], np.float64)[part] for name in names])
            self._add(np.maximum(times[part] - self.since_ns, 0), names, values.reshape(len(names), -1))

    def _add(self, since: np.ndarray, names: list[str], values: np.ndarray) -> None:
        """Add samples, rounded so that their sums have the same bits in any order.

        Args:
            since: int64[n] ns from the origin.
            values: float64[columns, n], NaN = absent.
        """
        parts = statistics(names, values)
        grain = np.array([[1.0 if name.endswith("_bytes") else 64.0] for name in names]).reshape(-1, 1)
        parts["total"] = names, np.rint(parts["total"][1] * grain) / grain
        self.fold.add(since, first=(("time",), since[np.newaxis]), last=(("time",), since[np.newaxis]), **parts)


@dataclass(eq=False)
class Top:
    """A run's steps by number and its samples by time, folded.

    Attributes:
        origin_ns: of the samples' times, since the epoch; 0 where the run's beginning is not known.
        steps: where they lie is in the cells' `first` "first_step" and "start_ns", and `last` "end_step" and "end_ns".
        samples: those of each group that was asked for; see `group`.
        summary: distributions of all series.
        values: number of values added.
        longest: the longest phases, in chronological order.
        segments: the sealed ones in it.
        stretches: first and last segment of each stretch of a long run, which has a top of its own.
        covered: number of the last segment in it; -1 = none.
    """

    VERSION = 1
    SAMPLES = SampleCells

    origin_ns: int = 0
    steps: StepCells = field(default_factory=StepCells)
    summary: ColumnDistributions = field(default_factory=ColumnDistributions)
    longest: dict[str, np.ndarray] = field(default_factory=lambda: complete("phases", {}))

    def __post_init__(self) -> None:
        self.origin_ns = self.origin_ns or 0
        self.values = 0
        self.segments: list[SegmentInfo] = []
        self.stretches: list[tuple[int, int]] = []
        self.covered = -1
        self.samples: dict[str, Any] = {}  # group -> `SAMPLES`
        # result of `step_cells`; None = to be made
        self._steps_of_cells: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None
        self._loaders: dict[str, Callable[[], Any]] = {}  # group -> makes its cells, at the first use

    def check(self) -> None:
        """Refuse an origin that is no time. Raises: Damaged."""
        checked_ns(self.origin_ns)

    # --- its cells --------------------------------------------------------------------------------

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys([*self.samples, *self._loaders]))

    def group(self, name: str) -> Fold | None:
        """Return the cells of a group's samples, None where there are none; stored ones are read at the first call."""
        cells = self.samples.get(name)
        if cells is None and name in self._loaders:
            cells = self.samples[name] = self._loaders[name]()
        return None if cells is None else cells.fold

    @property
    def nbytes(self) -> int:
        """Return about how much memory its cells take."""
        return self.steps.fold.nbytes + sum(cells.fold.nbytes for cells in list(self.samples.values()))

    @property
    def step_range(self) -> tuple[int, int]:
        """The first and the last step's number; (0, -1) without steps."""
        fold = self.steps.fold
        if not fold.used:
            return 0, -1
        return int(fold.of("first", "first_step").min()), int(fold.of("last", "end_step").max()) - 1

    def step_cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (first step, last step, start, end) of cells with steps: int64[n] each, ns since the origin."""
        fold = self.steps.fold
        if not fold.used:
            return tuple(np.zeros((4, 0), np.int64))  # type: ignore[return-value]
        if self._steps_of_cells is None:
            first, end_step = fold.of("first", "first_step"), fold.of("last", "end_step")
            has_steps = first < end_step
            start = np.maximum(fold.of("first", "start_ns")[has_steps] - self.origin_ns, 0)
            start = np.maximum.accumulate(start)
            end = np.maximum(fold.of("last", "end_ns")[has_steps] - self.origin_ns, start)
            self._steps_of_cells = first[has_steps], end_step[has_steps] - 1, start, end
        return self._steps_of_cells

    def start_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return when these steps began: float64[n] ns since the origin, NaN beyond the last one or without steps.

        Within a cell, steps are taken to be equally long.

        Args:
            numbers: int64[n], of steps.
        """
        first, last, start, end = self.step_cells()
        if not len(first):
            return np.full(len(numbers), np.nan)
        at = np.clip(np.searchsorted(first, numbers, "right") - 1, 0, None)
        share = np.clip((numbers - first[at]) / (last[at] - first[at] + 1), 0, 1)
        begins = start[at] + share * (end[at] - start[at])
        return np.where(numbers > last[-1], np.nan, begins)

    def step_at(self, since_ns: np.ndarray) -> np.ndarray:
        """Return the step under way at these times: int64[n]; that of the run's begin or end outside of it.

        Args:
            since_ns: int64[n] ns since the origin.
        """
        first, last, start, end = self.step_cells()
        if not len(first):
            return np.zeros(len(since_ns), np.int64)
        at = np.clip(np.searchsorted(start, since_ns, "right") - 1, 0, None)
        share = np.clip((since_ns - start[at]) / np.maximum(end[at] - start[at], 1), 0, 1)
        rows = last[at] - first[at] + 1
        return first[at] + np.minimum(np.floor(share * rows).astype(np.int64), rows - 1)

    # --- adding rows ------------------------------------------------------------------------------

    def add(self, tables: AnyTables, samples: AnyTables) -> None:
        """Add rows that follow those added before."""
        self.summary.add(tables, samples)
        self._add_phases(tables)
        self.fold(tables, {**samples, **pipeline_readings(tables)})

    def _add_phases(self, tables: AnyTables) -> None:
        if "phases" in tables:
            self.longest = longest(concatenate("phases", [self.longest, dict(tables["phases"])]), LONGEST)

    def fold(self, tables: AnyTables, samples: AnyTables) -> None:
        """Add rows to the cells, but not to the distributions and the longest phases.

        Args:
            tables: of which only steps are used.
            samples: group -> "time_ns" and columns.
        """
        self._add_steps(tables)
        for group, columns in samples.items():
            if len(columns["time_ns"]) and len(columns) > 1:  # some rows, with values and not times alone
                self.values += len(columns["time_ns"]) * (len(columns) - 1)
                self.group(group)  # stored cells are read first, so that these rows are added to them
                self.samples.setdefault(group, self.SAMPLES(self.origin_ns)).add(columns)

    def _add_steps(self, tables: AnyTables) -> None:
        """Add new rows of the `steps` table."""
        steps = tables.get("steps")
        if steps is not None and len(steps["step"]):
            self._steps_of_cells = None
            self.values += len(steps["step"]) * len(STEP_SERIES)
            self.steps.add(steps)

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
        other.samples = {}
        other._loaders = {  # stored ones of the old top, and those with new rows
            group: partial(self._group_with_rows, group, samples) for group in dict.fromkeys([*self.groups, *samples])
        }
        return other

    def _group_with_rows(self, name: str, samples: Tables) -> Any:
        """Return a copy of a group's cells with new samples added; the stored cells stay as they are."""
        self.group(name)
        cells, columns = self.samples.get(name, self.SAMPLES(self.origin_ns)), samples.get(name)
        if columns is None or not len(columns["time_ns"]) or len(columns) < 2:
            return cells
        cells = deepcopy(cells)
        cells.add(columns)
        return cells

    # --- its file ---------------------------------------------------------------------------------

    def saved(self) -> dict[str, np.ndarray]:
        """Return copies of all that is stored, by the member's name, but for the lists of segments and stretches."""
        members = save(self, f"{STATE}/")
        for name in self.groups:
            self.group(name)
            members |= save(self.samples[name], f"{name}/")
        return members

    @classmethod
    def unpack(cls: type[_Top], container: Container, on_damage: Callable[[Damaged], None]) -> _Top | None:
        """Return the top of a file; None where it is of another version.

        Args:
            on_damage: called when a group of samples turns out to be damaged, at its first use; the
                group is empty then.

        Raises: Damaged.
        """
        top = load(cls, container, f"{STATE}/")
        if top is None:
            return None
        _check(top.steps.fold, "sum", {"first": ("first_step", "start_ns"), "last": ("end_step", "end_ns")})
        rows = _integers(container, "segments", len(SegmentInfo._fields))
        top.segments = [SegmentInfo(*row) for row in rows]
        top.stretches = [(first, last) for first, last in _integers(container, "stretches", 2)]
        top.covered = max((info.last for info in top.segments), default=-1)
        names = (name.removesuffix(f"/{STATE}") for name in container.names if name.endswith(f"/{STATE}"))
        top._loaders = {name: partial(top._group_of, container, name, on_damage) for name in names if name != STATE}
        return top

    def _group_of(self, container: Container, name: str, on_damage: Callable[[Damaged], None]) -> Any:
        """Return a group's stored cells; new ones where they are damaged, which is reported."""
        try:
            cells = load(self.SAMPLES, container, f"{name}/")
            if cells is not None:
                _check(cells.fold, "total", {"first": ("time",), "last": ("time",)})
                return cells
            raise Damaged(f"{name[:40]}: cells of another version")
        except Damaged as error:
            on_damage(error)
        return self.SAMPLES(self.origin_ns)


def _check(fold: Fold, amount: str, places: Mapping[str, Sequence[str]]) -> None:
    """Make sure that each cell has what all have: low, high, count, an amount and its place. Raises: Damaged.

    Args:
        amount: part that has the sums: "sum" or "total".
        places: part -> the columns that it must have.
    """
    columns = {part: fold.columns(part) for part in ("low", "high", "count", amount, *places)} if fold.used else {}
    lacking = any(not {*names} <= {*columns.get(part, ())} for part, names in places.items())
    if columns and (lacking or not all(columns.values())):
        raise Damaged("cells without a column that all have")


def packed(
    members: Mapping[str, np.ndarray], segments: Sequence[SegmentInfo] = (), stretches: Sequence[tuple[int, int]] = ()
) -> bytes:
    """Return the bytes of `top.npz` or of a stretch's file.

    Args:
        members: what `Top.saved` returned.
        segments: those in it.
        stretches: first and last segment of each.
    """
    lists = {
        "segments": np.array(segments, np.int64).reshape(-1, len(SegmentInfo._fields)),
        "stretches": np.array(stretches, np.int64).reshape(-1, 2),
    }
    # These floats hardly compress; a higher level would only cost time.
    return pack({}, {**members, **lists}, level=1)


def _integers(container: Container, name: str, width: int) -> list[list[int]]:
    """Return rows of integers, int64[n, width] in the container, as lists. Raises: Damaged."""
    array = container.array(name)
    if array.dtype != np.int64 or array.ndim != 2 or array.shape[1] != width:
        raise Damaged(f"not a top: its list of {name} makes no sense")
    return cast(list[list[int]], array.tolist())


def longest(rows: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the `count` longest phases, in their original order."""
    lengths = rows["end_ns"] - rows["start_ns"]
    if len(lengths) <= count:
        return rows
    rows_kept = np.sort(np.argsort(-lengths, kind="stable")[:count])
    return {name: values[rows_kept] for name, values in rows.items()}
