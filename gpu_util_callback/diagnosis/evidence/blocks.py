"""Rows in bounded memory: steps in blocks that fold by two as a run grows, and phases by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_util_callback.diagnosis.evidence.gauges import SampleBins
from gpu_util_callback.diagnosis.thresholds import A_TENTH, Count
from gpu_util_callback.recording.fold import FAR, REDUCTIONS, EvenlySpread, Fold
from gpu_util_callback.recording.schema import FIT_GAP, PAUSES, STEP_PARTS
from gpu_util_callback.recording.top import StepCells

FLOOR_NS = Count(200_000, "an instant dataset reads 0.07-0.15 ms: get_next's own thread hop, not a wait")
# Number of shapes remembered; a run with more compiles all the time anyway.
MAX_SHAPES = 100_000
# Number of shapes whose first time is remembered.
MAX_TIMED_SHAPES = 256
MAX_LONG_WAITS = Count(4096, "rows with the longest waits are known one by one, of more only the sums")


_NON_NEGATIVE = ("duration_ns", "input_get_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns", "estimated")
# Name -> column whose known values it counts.
_COLUMN_COUNTED_BY = {"wait_known": "input_wait_ns", "compile_known": "compile_ns", "callbacks_known": "callbacks_ns"}


class StepBlocks(StepCells):
    """Sums over blocks of consecutive rows of the `steps` table; integers, hence exact.

    A block covers `rows_per_block` rows, aligned to the first row of the run: one cell, or several of
    a run whose cells are narrower than `BASE_ROWS`, of which the evenness of a wait could not be judged.

    Columns (int64, one value per block): the sums of the table's own columns; `wait_ns`, the input
    wait where it exceeds the floor; `clean_rows`/`clean_ns`, the steps that neither waited nor
    compiled; `new_*` and `known_*`, the rows whose input shape came for the first time, or had come
    before (neither, where shapes are static), with their time but for waits and callbacks;
    `*_events`, the rows in which that part took a tenth of the step, and `event_wait_ns`, the waits
    of those; `rest_ns`, what lay within a row and in none of its parts, such as a profiler window's
    start; `between_ns`, that and what lay between a row and the one before it; `top_*_ns`, the
    largest single value, and `least_step_ns`, the quickest step without wait and compiling; the
    block's extent in steps and time.
    """

    CAPACITY = 8192
    BASE_ROWS = 4
    _SLICE = 1 << 16

    total_rows: int
    _last_end: int | None  # of the newest row
    _shapes: set[int]
    first_ns: dict[int, int]  # when each of the first shapes ran first
    _longest: np.ndarray  # int64[3, n]: wait in ns, step, start: of the rows with the longest waits

    def __init__(self) -> None:
        self.total_rows = 0
        self._last_end = None
        self._shapes = set()
        self.first_ns = {}
        self._longest = np.zeros((3, 0), np.int64)
        self.fold = Fold(self.CAPACITY)
        self._columns: dict[str, np.ndarray] = {}  # those that were asked for since rows were added

    @property
    def rows_per_block(self) -> int:
        return max(self.BASE_ROWS, self.fold.width)

    def __len__(self) -> int:
        return -(-self.fold.used * self.fold.width // self.rows_per_block)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column over all blocks so far, int64 (len(self),); the class lists the columns.

        The fold's cells may be narrower than a block: then several neighbouring cells are reduced to each block's
        value.
        """
        if not self.total_rows:  # no step yet
            return np.zeros(0, np.int64)
        if name not in self._columns:
            parts = ("count",) if name in _COLUMN_COUNTED_BY else ("sum", "last", "first")
            column = _COLUMN_COUNTED_BY.get(name, name)
            part = next(part for part in parts if column in self.fold.columns(part))
            cells, per_block = self.fold.of(part, column), self.rows_per_block // self.fold.width
            first_cells = np.arange(0, len(cells), per_block)
            self._columns[name] = cells if per_block == 1 else REDUCTIONS[part].ufunc.reduceat(cells, first_cells)
        return self._columns[name]

    def total(self, name: str, blocks: slice = slice(None)) -> int:
        """Return a column's sum over some of the blocks, all by default."""
        return int(self[name][blocks].sum())

    def longest_waits(self, first_step: int, end_step: int) -> np.ndarray:
        """Return the longest waits of these steps, longest first.

        They are rows that waited for input for a tenth of the step or more; of very many only the longest were kept.

        Returns:
            int64[3, n]: the wait beyond the floor in ns, the step, its start in ns since the epoch.
        """
        _, step, _ = self._longest  # rows of the array: wait, step, start
        inside = self._longest[:, (first_step <= step) & (step < end_step)]
        return inside[:, np.argsort(-inside[0], kind="stable")]

    def mostly_estimated(self, blocks: slice) -> bool:
        """Return True if the waits of more than half of the rows are estimates."""
        return 2 * self.total("estimated", blocks) > self.total("rows", blocks)

    @property
    def extent_ns(self) -> tuple[int, int]:
        """Start of the first step and end of the last one."""
        return int(self["start_ns"][0]), int(self["end_ns"].max())

    @property
    def own_ns(self) -> np.ndarray:
        """Time of each block without waits beyond the floor, callbacks and compiling."""
        return self["duration_ns"] - self["wait_ns"] - self["callbacks_ns"] - self["compile_ns"]

    @property
    def explained_ns(self) -> np.ndarray:
        """Time of each block in fetching, compiling and callbacks, and in no part: the GPU may idle in it."""
        return self["input_wait_ns"] + self["compile_ns"] + self["callbacks_ns"] + self["rest_ns"]

    def spent_ns(self, times: np.ndarray) -> dict[str, np.ndarray]:
        """Return the time in steps before each of `times`, by account of the training thread.

        A fold's cell holds one step or several. In a cell of several the time counts as spread evenly; a single step
        spends its parts one after the other, in the order of `STEP_PARTS`.

        Args:
            times: int64 (n,), ns since the epoch.

        Returns:
            account -> float64 (n,), ns.
        """
        spent: dict[str, np.ndarray] = {}
        begin, end = (self.fold.of(*place) for place in (("first", "start_ns"), ("last", "end_ns")))
        # Number of cells that have begun by each time; 0 = none.
        newest_cell = np.searchsorted(np.maximum.accumulate(begin), times, side="right")
        elapsed_ns = times - np.append(begin[:1], begin)[newest_cell]
        share = np.clip(elapsed_ns / np.maximum(np.append(1, end - begin)[newest_cell], 1), 0, 1)
        for column, account in STEP_PARTS.items():
            amounts_ns = self.fold.of("sum", column)
            newest = np.append(0, amounts_ns)[newest_cell]
            # of a single step, one part after the other
            passed = np.clip(elapsed_ns, 0, newest) if self.fold.width == 1 else newest * share
            elapsed_ns = elapsed_ns - newest  # what the next part of a single step has left
            spent[account] = spent.get(account, 0) + np.append(0, np.cumsum(amounts_ns))[newest_cell] - newest + passed
        return spent

    def slack_ns(self, blocks: slice = slice(None)) -> int:
        """Return the time in ns by which steps exceed the quickest ones; ≥ 0.

        Waits for input and compiling are left out.

        The usual quickest step is the median of `least_step_ns` over the blocks; 0 where no block has such a step.
        """
        quickest = self["least_step_ns"][blocks]
        quickest = quickest[quickest < FAR]
        if not len(quickest):
            return 0
        rows, duration, wait, compiling = (
            self.total(name, blocks) for name in ("rows", "duration_ns", "input_wait_ns", "compile_ns")
        )
        return max(0, duration - wait - compiling - round(rows * float(np.median(quickest))))

    def add(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `steps` table, in order; -1 counts as unknown."""
        for first in range(0, len(steps["start_ns"]), self._SLICE):
            self._add({name: column[first : first + self._SLICE] for name, column in steps.items()})

    def _add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add rows of the table: each a number of the run, its columns summed, or reduced to extremes."""
        self._columns = {}
        count = len(table["start_ns"])
        parts = self._reduced_columns(table, count)
        added = {part: (tuple(columns), np.stack(list(columns.values()))) for part, columns in parts.items()}
        self.fold.add(self.total_rows + np.arange(count), **{**self._extremes(table), **added})
        self.total_rows += count

    def _reduced_columns(self, table: Mapping[str, np.ndarray], count: int) -> dict[str, dict[str, np.ndarray]]:
        """Return the columns of new rows by how the fold reduces them; int64 (count,) each.

        Returns:
            "sum" -> columns that are summed, "last" -> largest values, "first" -> smallest values; the class describes
            them.
        """
        counted = {name: np.maximum(table[name], 0) for name in _NON_NEGATIVE}
        raw_wait, start, step = table["input_wait_ns"], table["start_ns"], table["step"]
        duration, compile_ns = counted["duration_ns"], counted["compile_ns"]
        callbacks = counted["callbacks_ns"]
        raw = np.maximum(raw_wait, 0)  # the recorded wait, unknown (-1) as 0
        # Up to the floor it is get_next's own work, which makes up about half of a longer wait.
        wait = np.where(raw > FLOOR_NS, raw - FLOOR_NS // 2, 0)
        clean = ((wait == 0) & (compile_ns == 0) & (duration > 0)).astype(np.int64)
        event_ns = (duration * A_TENTH).astype(np.int64)  # a part that takes at least this much of its step is an event
        new, dynamic = self._mark_new_shapes(table["shape_id"], start)
        work = np.maximum(duration - raw - callbacks, 0)
        wait_event = (wait > 0) & (wait >= event_ns)
        self._keep_longest(np.stack([wait, step, start])[:, wait_event])
        parts = raw + sum(counted[name] for name in ("compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns"))
        # Without a known body the rest is unknown: 0.
        rest_ns = np.where(table["body_ns"] >= 0, np.maximum(duration - parts, 0), 0)
        previous_end = start[0] if self._last_end is None else self._last_end
        step_ends = np.concatenate([[previous_end], start + duration])
        between = np.maximum(start - step_ends[:-1], 0) + rest_ns
        self._last_end = int(step_ends[-1])
        sums = {
            "rows": np.ones(count, np.int64),
            "input_wait_ns": raw,
            "wait_ns": wait,
            "wait_events": wait_event.astype(np.int64),
            "event_wait_ns": wait_event * wait,
            "rest_ns": rest_ns,
            "between_ns": between,
            "between_events": (between > (duration - rest_ns) * A_TENTH).astype(np.int64),
            "callback_events": ((callbacks > 0) & (callbacks >= event_ns)).astype(np.int64),
            "compile_events": (compile_ns > 0).astype(np.int64),
            "clean_rows": clean,
            "clean_ns": clean * duration,
            "new_rows": new,
            "new_ns": new * work,
            "known_rows": dynamic - new,
            "known_ns": (dynamic - new) * work,
        }
        largest = {
            "top_between_ns": between,
            "top_new_ns": new * work,
            "top_wait_ns": wait,
            "top_callbacks_ns": callbacks,
            "top_compile_ns": compile_ns,
            "top_body_ns": counted["body_ns"],
            "end_ns": start + duration,
            "end_step": step + 1,
        }
        smallest = {
            "least_step_ns": np.where(duration > raw + compile_ns, duration - raw - compile_ns, FAR),
            "start_ns": start,
            "first_step": step,
        }
        return {"sum": counted | sums, "last": largest, "first": smallest}

    def _keep_longest(self, waits: np.ndarray) -> None:
        """Add waits to `self._longest`; of more than `MAX_LONG_WAITS` the longest are kept.

        Args:
            waits: int64[3, n], rows as in `longest_waits`: wait, step, start.
        """
        if len(self._longest[0]) == MAX_LONG_WAITS:  # full already: shorter waits than all of those kept cannot enter
            waits = waits[:, waits[0] > self._longest[0].min()]
        if not waits.size:
            return
        waits = np.concatenate([self._longest, waits], axis=1)
        if len(waits[0]) > MAX_LONG_WAITS:
            waits = waits[:, np.argpartition(-waits[0], MAX_LONG_WAITS)[:MAX_LONG_WAITS]]
        self._longest = waits

    def _mark_new_shapes(self, shapes: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mark the rows with an input shape that the run has not had before.

        Args:
            shapes: int64 (rows,), ids of input shapes; -1 = shapes are static or unknown.
            start: int64 (rows,), when each row began, ns.

        Returns:
            Two int64 (rows,) of 0 and 1: the row's shape is new; the row has a shape id.
        """
        new, dynamic = np.zeros(len(shapes), np.int64), shapes >= 0
        if dynamic.any():
            shape_ids, first = np.unique(shapes, return_index=True)
            for shape, row in zip(shape_ids.tolist(), first.tolist(), strict=True):
                if shape >= 0 and shape not in self._shapes and len(self._shapes) < MAX_SHAPES:
                    self._shapes.add(shape)
                    new[row] = 1
                    if len(self.first_ns) < MAX_TIMED_SHAPES:
                        self.first_ns[shape] = int(start[row])
        return new, dynamic.astype(np.int64)


GAP_NS = Count(60_000_000_000, "without a sample: a shorter gap may be a hanging driver or a long step")


def absences(steps: StepBlocks, sampled_groups: Iterable[SampleBins]) -> np.ndarray:
    """Return the gaps of the run without samples and without a step's end: int64[n, 2], start and end in ns.

    Steps without samples point to a stopped sampler, samples without steps to training that stands
    still; only both together to a suspended process. Without any samples it cannot be determined.
    """
    sampled_groups = [bins for bins in sampled_groups if bins.fold.used]
    no_gaps = np.zeros((0, 2), np.int64)
    if not len(steps) or not sampled_groups:
        return no_gaps
    all_stamps: list[np.ndarray] = []
    first_ns = min(bins.origin_ns or 0 for bins in sampled_groups)
    last_ns = max(bins.last_ns for bins in sampled_groups)
    for bins in sampled_groups:
        all_stamps.append(bins.stamps())
        if np.diff(all_stamps[-1], prepend=first_ns, append=last_ns).max() < GAP_NS:
            return no_gaps  # this one was read all along
    times = np.sort(np.concatenate(all_stamps))
    times = times[np.diff(times, prepend=-1) > 0]
    gaps_ns = np.diff(times)
    if not len(gaps_ns):  # a single sample
        return no_gaps
    ends = steps["end_ns"]
    # A gap counts only if it is ten times the usual distance of samples and length of a block.
    usual_ns = max(float(np.median(gaps_ns)), float(np.median(ends - steps["start_ns"])))
    long = np.flatnonzero((gaps_ns >= GAP_NS) & (A_TENTH * gaps_ns >= usual_ns))
    # Samples and steps do not resume at the same moment, and a bin only records its beginning.
    slack_ns = 2 * float(np.median(gaps_ns)) + max(bins.bin_ns for bins in sampled_groups)
    # Steps that ended within each gap.
    ended_steps = np.searchsorted(ends, times[long + 1] - slack_ns) - np.searchsorted(ends, times[long] + slack_ns)
    long_gaps = long[ended_steps <= 1]
    return np.stack([times[long_gaps], times[long_gaps + 1]], axis=1).astype(np.int64)


class Pauses:
    """Pauses between steps that do not follow one another: an epoch ends, or a phase outside the steps lies there.

    Attributes:
        rows: float64 (n,), ascending: the number of rows before each pause.
        begin_ns, end_ns: int64 (n,), when the step before it ended and the one after it began.
    """

    def __init__(self, steps: StepBlocks, phases: Phases):
        """Place the seams of the phases between rows.

        A seam is a step number with the times at which something other than a step ran there (`Phases.seams`). Seams
        before the same row become one pause, from the first begin to the last end.
        """
        self._steps = steps
        seam_steps, begin, end = phases.seams()
        width, first = steps.rows_per_block, steps["first_step"]
        # The block that contains each seam's step.
        block = np.maximum(np.searchsorted(first, seam_steps, side="right") - 1, 0)
        rows = block * width + np.clip(seam_steps - first[block], 0, steps["rows"][block])
        rows, seams = np.unique(rows, return_inverse=True)
        self.rows = rows.astype(float)
        self.begin_ns, self.end_ns = np.full(len(rows), FAR), np.zeros(len(rows), np.int64)
        np.minimum.at(self.begin_ns, seams, begin)
        np.maximum.at(self.end_ns, seams, end)
        # Between two blocks both are known whatever lies there.
        # Pauses that lie exactly between two blocks.
        edge = np.flatnonzero((rows % width == 0) & (rows > 0) & (rows < steps.total_rows))
        after = (rows[edge] // width).astype(int)
        self.begin_ns[edge], self.end_ns[edge] = steps["end_ns"][after - 1], steps["start_ns"][after]

    def inside(self, first: float, end: float, least_ns: float) -> np.ndarray:
        """Return the indices of the pauses between two rows that are longer than `least_ns`; int64[n]."""
        inside = (self.rows > first) & (self.rows < end) & (self.end_ns - self.begin_ns > least_ns)
        return np.flatnonzero(inside)

    def edges(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and times at which a block begins, each pause in it begins and ends, and the block ends.

        Between two of these points steps follow one another, so that rows can be interpolated from times and back.

        Returns:
            float64 rows before each point and int64 ns since the epoch, (2 + 2 · pauses,) each, ascending.
        """
        steps, width = self._steps, self._steps.rows_per_block
        first, last = block * width, block * width + int(steps["rows"][block])
        a, b = np.searchsorted(self.rows, first, side="right"), np.searchsorted(self.rows, last, side="left")
        times = np.stack([self.begin_ns[a:b], self.end_ns[a:b]], axis=1).ravel()
        start_ns, end_ns = int(steps["start_ns"][block]), int(steps["end_ns"][block])
        rows = np.concatenate([[first], np.repeat(self.rows[a:b], 2), [last]])
        return rows, np.maximum.accumulate(np.clip(np.concatenate([[start_ns], times, [end_ns]]), start_ns, end_ns))

    def times(self, row: float, row_ns: float) -> tuple[int, int]:
        """Return when the step before a row ended and the one after it began, ns since the epoch.

        Args:
            row: the number of rows before that place; fractions lie within a step.
            row_ns: duration of a step there. What lies between two pauses and takes longer than its steps is taken to
                lie around this row.
        """
        steps, width = self._steps, self._steps.rows_per_block
        block = min(int(row // width), len(steps) - 1)
        rows, at_ns = self.edges(block)
        if row <= rows[0]:  # between two blocks
            return int(steps["end_ns"][max(0, block - 1)]), int(steps["start_ns"][block])
        before, after = int(np.searchsorted(rows, row)) - 1, int(np.searchsorted(rows, row, side="right"))
        if after == len(rows):  # the end of the run
            return int(at_ns[-1]), int(at_ns[-1])
        if after - before > 1:  # a pause begins here
            return int(at_ns[before + 1]), int(at_ns[after - 1])
        end_ns = min(at_ns[after], at_ns[before] + (row - rows[before]) * row_ns)
        return int(end_ns), int(max(at_ns[before], at_ns[after] - (rows[after] - row) * row_ns))


MAX_NAMES = 256
# Column of an occurrence -> part of the fold.
_PHASE_PARTS = {"start_ns": "first", "end_ns": "last", "self_ns": "sum", "step": "first", "count": "sum"}
Occurrence = tuple[int, int, int, int, int]  # of COLUMNS


class Occurrences:
    """Times of one kind of phase; neighbours are joined when there are too many to keep.

    Joined ones have the first start and step, the last end, and the sums of the rest.
    """

    CAPACITY = 1024
    COLUMNS = ("start_ns", "end_ns", "self_ns", "step", "count")

    _fold: Fold  # by the number of an occurrence
    _occurred: int
    count: int
    self_ns: int
    longest_ns: int  # of a single occurrence
    _newest_ns: int

    def __init__(self, rows: Sequence[Occurrence] = ()) -> None:
        self._fold = Fold(self.CAPACITY)
        self._occurred = 0
        self.count = 0
        self.self_ns = 0
        self.longest_ns = 0
        self._newest_ns = 0
        self.add(rows)

    @property
    def joined(self) -> bool:
        """True if rows cover several occurrences, including the time between them."""
        return self._fold.width > 1

    def add(self, rows: Sequence[Occurrence]) -> None:
        """Add occurrences (start_ns, end_ns, self_ns, step, count) in order.

        `self_ns` is the time without nested phases. A row with a count of 0 is a later part of the occurrence before
        it.
        """
        if not rows:
            return
        numbers = []
        for _, _, self_ns, _, count in rows:
            self._occurred += count > 0
            numbers.append(self._occurred)
            self._newest_ns = self_ns // count if count else self._newest_ns + self_ns
            self.longest_ns = max(self.longest_ns, self._newest_ns)
        values = np.array(rows, np.int64).T
        self._fold.add(
            np.array(numbers) - 1,
            first=(("start_ns", "step"), values[[0, 3]]),
            last=(("end_ns",), values[[1]]),
            sum=(("self_ns", "count"), values[[2, 4]]),
        )
        self.self_ns += int(values[2].sum())
        self.count += int(values[4].sum())

    def __getitem__(self, column: str) -> np.ndarray:
        return self._fold.of(_PHASE_PARTS[column], column) if len(self) else np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._fold.used


@dataclass(eq=False)
class Phases:
    """Occurrences by (kind, name, account); epochs and the like are not distinguished by name."""

    _groups: dict[tuple[str, str, str], Occurrences] = field(default_factory=dict)
    end_ns: int = 0

    def add(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `phases` table to the occurrences of their kind, name and account.

        Times are ns since the epoch. Beyond `MAX_NAMES` groups, further names of a kind share "others".
        """
        columns = "kind", "name", "account", "start_ns", "end_ns", "self_ns", "step", "count"
        new: dict[tuple[str, str, str], list[Occurrence]] = {}
        for kind, phase_name, account, start, end, own_ns, step, count in zip(
            *(table[name].tolist() for name in columns), strict=True
        ):
            # Epochs, validations and gaps are numbered; a number is not a name.
            name = phase_name if kind in ("callback", "checkpoint", "compilation") else ""
            self.end_ns = max(self.end_ns, end)
            is_tail = kind == "gap" and account == "validation"  # mostly closing its input
            key = ("validation" if is_tail else kind, name, account)
            is_tail = is_tail and key in self._groups  # counts as a later part of a validation only if there is one
            if key not in self._groups and len(self._groups) >= MAX_NAMES:
                key = (kind, "others", account)
            self._groups.setdefault(key, Occurrences())
            new.setdefault(key, []).append((start, end, max(0, own_ns), step, 0 if is_tail else max(1, count)))
        for key, rows in new.items():
            self._groups[key].add(rows)

    def of(self, *kinds: str, account: str | None = None) -> dict[str, Occurrences]:
        """Return the occurrences of these kinds by name ("" for kinds without names), in one account or in all."""
        return {
            name: group
            for (kind, name, where), group in self._groups.items()
            if kind in kinds and (account is None or where == account)
        }

    def seams(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the steps at which something other than a step ran, and when that began and ended.

        Occurrences that are kept joined are left out: steps lie between them.

        Returns:
            Step, begin and end (ns since the epoch); int64 (n,) each, grouped by phase.
        """
        seams = [np.zeros((3, 0), np.int64)]
        for (kind, _, account), group in self._groups.items():
            if group.joined or not (account or kind in ("epoch", FIT_GAP)):
                continue
            step, start, end = group["step"], group["start_ns"], group["end_ns"]
            if kind == "epoch":  # recorded with the step that it ended with
                step, start, end = step[:-1], end[:-1], start[1:]
            seams.append(np.stack([step, start, end])[:, end >= start])
        steps, starts, ends = np.concatenate(seams, axis=1)
        return steps, starts, ends

    def accounted_ns(self, times: np.ndarray) -> np.ndarray:
        """Return the time outside steps that phases account for before each of `times`, ns."""
        by_account = self.spent_ns(times, "")
        return sum((spent for account, spent in by_account.items() if account), np.zeros(len(times)))

    def spent_ns(self, times: np.ndarray, pauses: str = FIT_GAP) -> dict[str, np.ndarray]:
        """Return the time outside steps before each of `times` by account.

        Args:
            times: int64 (n,), ns since the epoch.
            pauses: the name under which pauses of the process and gaps between fits count; "" = under their own
                account.

        Returns:
            account -> float64 (n,), ns; a phase's own time counts as spread evenly over it.
        """
        spent: dict[str, np.ndarray] = {}
        for (kind, _, counted), group in self._groups.items():
            account = pauses or counted if kind in PAUSES else counted
            [before] = EvenlySpread(group["start_ns"], group["end_ns"], group["self_ns"]).before(times)
            spent[account] = spent.get(account, 0) + before
        return spent
