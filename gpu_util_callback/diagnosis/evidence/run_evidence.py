"""A run as rules see it: bounded sums over its tables and samples, and queries on them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import Occurrences, Pauses, Phases, StepBlocks, absences
from gpu_util_callback.diagnosis.evidence.gauges import HOLD_NS, Gauges, Mean, SampleBins, cached
from gpu_util_callback.diagnosis.evidence.pipeline import Pipeline
from gpu_util_callback.diagnosis.evidence.source import Traced
from gpu_util_callback.diagnosis.evidence.spans import Range, Series, find_spans
from gpu_util_callback.diagnosis.evidence.usage import AcceleratorUse
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TREND, MOSTLY, NO_WORK_PCT, WARM_UP, Count
from gpu_util_callback.recording.fold import EvenlySpread
from gpu_util_callback.recording.manifest_facts import (
    AccountFacts,
    Facts,
    Fit,
    Framework,
    Gpu,
    Machine,
    MemoryFacts,
    Model,
    SourceFacts,
    with_known_parts,
)
from gpu_util_callback.recording.schema import ACCOUNTS, PAUSES, STOPPED, TABLES
from gpu_util_callback.recording.segments import AnyTables, complete
from gpu_util_callback.recording.summary import Account
from gpu_util_callback.recording.top import PIPELINE, Top

AROUND_NS = 500_000_000  # on either side: NVML's utilization is a mean over up to a second
MOST_VALIDATIONS = Count(1024, "validations whose batches are counted: what is used up shows in the second")


def _without_nulls(facts: object) -> dict[str, object]:
    """Return the facts that are known; {} if there are none."""
    items = facts.items() if isinstance(facts, Mapping) else ()
    return {str(name): value for name, value in items if value is not None}


@dataclass(eq=False)
class Evidence(Top):
    """Sums over all tables and sample groups; memory, and the cost of adding rows, stay bounded.

    Rows are added once and in order: the same rows give the same sums, however they are split.

    Attributes:
        samples: by group: "gpu<i>" at the time of the poll, "gpu<i>/utilization" at the end of its
            window, "gpu<i>/gpm", "host" and others.
        errors: GPU -> the driver's error number (Xid) -> time of its last report. Several come at
            once, of which a bin would hold the mean.
        memory: "host:process_held_bytes" -> its course.
        validation_batches: steps trained before a validation -> its batches; of the first ones.
    """

    VERSION = 1  # of what is summed up, and how: raise it where other rows become events, or waits others
    SAMPLES = SampleBins

    steps: StepBlocks = field(default_factory=StepBlocks)
    validation: StepBlocks = field(default_factory=StepBlocks)
    validation_batches: dict[int, int] = field(default_factory=dict)
    phases: Phases = field(default_factory=Phases)
    pipeline: Pipeline = field(default_factory=Pipeline)
    traced: Traced = field(default_factory=Traced)
    accelerator: AcceleratorUse = field(default_factory=AcceleratorUse)
    account: Account = field(default_factory=Account)
    errors: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, tables: AnyTables, samples: AnyTables | None = None) -> None:
        """Add new rows of any tables of the schema and new samples of any groups; each row once, in order.

        Args:
            tables: name of a table -> column -> array; a column that a table lacks counts as unknown.
            samples: group -> column -> array, "time_ns" among them.
        """
        samples = samples or {}
        full = {name: _with_all_columns(name, table) for name, table in tables.items()}
        super().add(full, samples)
        if "steps" in full:
            self.accelerator.add(full["steps"])
            self.account.add_steps(full["steps"])
        if "validation_steps" in full:
            self.validation.add(complete("steps", full["validation_steps"]))
            # `step`: those trained before the validation that the row belongs to.
            for step, batches in zip(*np.unique(full["validation_steps"]["step"], return_counts=True), strict=True):
                if int(step) in self.validation_batches or len(self.validation_batches) < MOST_VALIDATIONS:
                    self.validation_batches[int(step)] = self.validation_batches.get(int(step), 0) + int(batches)
        if "phases" in full:
            self.phases.add(full["phases"])
            self.account.add_phases(full["phases"])
        if "pipeline" in full:
            self.pipeline.add(full["pipeline"])
        if "traced_steps" in full:
            self.traced.add_steps(full["traced_steps"])
        if "kernels" in full:
            self.traced.add_kernels(full["kernels"])
        for group, block in samples.items():
            if group.endswith("/xid") and "xid" in block:  # the newest time of each of the driver's error numbers
                last_by_number = self.errors.setdefault(group.removesuffix("/xid"), {})
                for time_ns, number in zip(block["time_ns"], block["xid"], strict=True):
                    if np.isfinite(number):
                        last_by_number[int(number)] = int(time_ns)


def _with_all_columns(name: str, table: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return a table with all columns of the schema, as arrays."""
    is_full = table.keys() >= TABLES[name].keys() and all(isinstance(column, np.ndarray) for column in table.values())
    return table if is_full else complete(name, table)


def _nearest_place(places: np.ndarray, row: float, within: float) -> float:
    """Return the place nearest to a row, if it is that near; else the row."""
    near_places = places[np.abs(places - row) <= within]
    return float(near_places[np.abs(near_places - row).argmin()]) if len(near_places) else row


class Idle(NamedTuple):
    """Idleness of the GPUs on which this training computes, over a range."""

    active_pct: float  # NVML's mean utilization (kernels and copies) of those GPUs
    idle_ns: int
    samples: int
    gpus: tuple[int, ...]


class CleanSteps(NamedTuple):
    """Steps that neither wait nor compile: the duration of one, and their number."""

    each_ns: float
    number: int


class Run(Gauges):
    """All data that rules may look at, at one time: its evidence does not grow while it is judged.

    Attributes:
        facts: the manifest's facts.
        manifest: the same without what is null, and so are its parts: `fit` (parameters of the training
            and its input), `model`, `machine`, `framework_facts`, `memory_facts` (what the recorder saw
            grow, or run out).
        source: the trace that this run was made of, whose steps are all timed exactly, or None.
        gpus: those that this process may use; used_gpus: indices of those in use by the framework.
        steps, validation, validation_batches, phases, pipeline, traced, accelerator, errors: as in `Evidence`.
        now_ns: the end of the run so far, on the recording's clock; None = the last row.
        ended: whether no rows will follow.

    Args:
        account: the stored one, which may count rows that the evidence lacks; None = of the evidence.
    """

    def __init__(
        self,
        facts: Mapping,
        evidence: Evidence,
        now_ns: int | None = None,
        ended: bool = False,
        account: AccountFacts | None = None,
    ):
        samples = {group: bins for group, bins in evidence.samples.items() if group != PIPELINE}
        super().__init__(samples)
        self.facts = dict(facts)  # the recorder goes on changing its own
        self.manifest = cast(Facts, _without_nulls(self.facts))
        self.fit = cast(Fit, _without_nulls(self.facts.get("fit")))
        self.model = cast(Model, _without_nulls(self.facts.get("model")))
        self.machine = cast(Machine, _without_nulls(self.facts.get("machine")))
        self.framework_facts = cast(Framework, _without_nulls(self.facts.get("framework")))
        self.memory_facts = cast(MemoryFacts, _without_nulls(self.facts.get("memory")))
        self.source: SourceFacts | None = self.manifest.get("source") or None
        self.gpus: list[Gpu] = [gpu for gpu in self.manifest.get("gpus", []) if "index" in gpu]
        self.used_gpus = [gpu["index"] for gpu in self.gpus if gpu.get("used_by_framework")]
        self.steps, self.validation, self.phases = evidence.steps, evidence.validation, evidence.phases
        self.validation_batches = evidence.validation_batches
        self.pipeline, self.traced, self.errors = evidence.pipeline, evidence.traced, evidence.errors
        self.accelerator = evidence.accelerator
        self.now_ns = now_ns
        self.ended = ended
        self._account, self._stored_account = evidence.account, account

    @property
    def over(self) -> bool:
        """True if no step will follow: the training has ended, or its process is gone."""
        return self.ended or bool(self.facts.get("lost"))

    @property
    def other_program(self) -> bool:
        """True if a trace shows neither batches nor gradients: no words of a training fit it."""
        return self.source is not None and not (self.source["fetches"] or self.source["trains"])

    def rounded(self, value: float, places: int | None = None) -> float:
        """Round a number to the precision of its measurement: not at all if it is exact."""
        return value if self.source is not None else round(value, places)

    # -- time ----------------------------------------------------------------------------------

    @property
    def start_ns(self) -> int:
        """Start of the training, ns since the epoch."""
        started = self.facts.get("started_ns")
        if started:
            return int(started)
        return int(self.steps["start_ns"][0]) if len(self.steps) else 0

    @functools.cached_property
    def end_ns(self) -> int:
        """End of the run so far: the last row's, or later if known, ns since the epoch."""
        last = int(self.steps["end_ns"].max()) if len(self.steps) else self.start_ns
        last = max(last, self.phases.end_ns)
        last_known = self.now_ns or self.facts.get("ended_ns") or 0
        return max(last, int(last_known))

    @functools.cached_property
    def wall_ns(self) -> int:
        """Duration of the training; of a series, the sum of its fits.

        Time in which the process was seen to be stopped is left out.
        """
        return max(0, self.end_ns - self.start_ns - sum(p.self_ns for p in self._pauses))

    @functools.cached_property
    def present_ns(self) -> int:
        """The wall time without `absent_ns`."""
        return max(0, self.end_ns - self.start_ns - self.absent_ns(self.start_ns, self.end_ns))

    def absent_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the ns of a time range in which no fit ran or the process was suspended.

        No fit ran between two fits of a series. Suspended: the process was stopped, or its machine asleep.

        Args:
            start_ns, end_ns: of the range, ns since the epoch.
        """
        suspended = self.once("absences", lambda: absences(self.steps, self.samples.values()))
        pauses = self._pauses
        # A stop that was recorded and shows as a gap without samples counts once.
        for stop in self.phases.of(STOPPED).values():  # seen both ways
            at = np.searchsorted(stop["start_ns"], suspended[:, 1])
            suspended = suspended[(at == 0) | (stop["end_ns"][at - 1] <= suspended[:, 0])]
        if not len(suspended) and not pauses:
            return 0
        first = np.concatenate([suspended[:, 0], *(pause["start_ns"] for pause in pauses)])
        last = np.concatenate([suspended[:, 1], *(pause["end_ns"] for pause in pauses)])
        # Pauses that are kept joined include the fits between them, too.
        spent = np.concatenate([suspended[:, 1] - suspended[:, 0], *(pause["self_ns"] for pause in pauses)])
        # What of each pause lies in the range.
        absent = np.clip(np.minimum(last, end_ns) - np.maximum(first, start_ns), 0, None)
        return int((absent * (spent / np.maximum(last - first, 1))).sum())

    def present_in(self, where: Range) -> int:
        """Return the length of a range without the time that `absent_ns` counts in it."""
        return where.length_ns - sum(self.absent_ns(*extent) for extent in where.intervals)

    @functools.cached_property
    def account(self) -> AccountFacts:
        """The training thread's time by category; see `Account`.

        The stored one if it has all categories (from damaged rows, it lacks some); else computed of the rows.
        """
        stored = self._stored_account
        if stored is not None and stored["time_s"].keys() >= {*ACCOUNTS}:
            return stored
        return with_known_parts(self._account.result(self.start_ns, self.now_ns or self.end_ns))

    @property
    def _pauses(self) -> list[Occurrences]:
        return [pause for kind in PAUSES for pause in self.phases.of(kind).values()]

    @property
    def first_step(self) -> int:
        return int(self.steps["first_step"][0]) if len(self.steps) else 0

    @property
    def end_step(self) -> int:
        return int(self.steps["end_step"].max()) if len(self.steps) else 0

    @functools.cached_property
    def epoch_steps(self) -> np.ndarray:
        """Steps of each epoch that has ended, in order; int64 (epochs,).

        Where epochs are kept joined, the mean of those.
        """
        epochs = self.phases.of("epoch").get("")
        if epochs is None or not len(epochs):
            return np.zeros(0, np.int64)
        steps_before = np.concatenate([[self.first_step], epochs["step"]])
        in_row = np.concatenate([[1], epochs["count"][:-1]])  # epochs between the first ones of two rows
        return np.repeat(np.diff(steps_before) // in_row, in_row)

    @property
    def whole(self) -> Range:
        return Range(self.first_step, self.end_step, self.start_ns, self.end_ns)

    # -- facts ---------------------------------------------------------------------------------

    @property
    def custom_loop(self) -> bool:
        """True if a loop of the user's own trains, not `fit`."""
        return self.fit.get("loop") == "custom"

    @property
    def trainer(self) -> str:
        """Library whose trainer runs the loop, "lightning" or "transformers"; "" for the user's own loop and `fit`."""
        return str(self.fit.get("trainer") or "")

    @property
    def input_kind(self) -> str:
        """Kind of the input, in lower case: "tf.data", "torch dataloader", ...; "" if unknown."""
        return str(self.fit.get("input_kind", "")).lower()

    @property
    def container_limit(self) -> float | None:
        """The container's limit of memory, bytes, where it is one: below the machine's memory."""
        limit, total = self.machine.get("memory_limit_bytes"), self.machine.get("memory_total_bytes")
        return None if limit is None or (total and limit > total) else float(limit)

    @property
    def host_limit(self) -> tuple[float, str] | None:
        """The lowest limit of the host's memory in bytes, and what sets it: "container", "ulimit -v" or "machine".

        None where no limit is known.
        """
        limits = {
            "container": self.machine.get("memory_limit_bytes"),
            "ulimit -v": self.machine.get("address_space_limit_bytes"),
            "machine": self.machine.get("memory_total_bytes"),
        }
        return min(((limit, name) for name, limit in limits.items() if limit), default=None)

    @property
    def framework(self) -> str:
        """One of "tensorflow", "jax", "torch", ""."""
        backend = self.framework_facts.get("backend") or self.framework_facts.get("name") or ""
        return str(backend).lower()

    @property
    def device(self) -> str:
        """Device of the training: "gpu" or "cpu"."""
        reported = self.framework_facts.get("device")  # without a driver library no GPU is listed
        return "gpu" if self.used_gpus or reported == "gpu" else "cpu"

    @functools.cached_property
    def working_gpus(self) -> list[int]:
        """The used GPUs on which this training computes, if known; else all of them.

        Frameworks take memory on every GPU they see and may run everything on one: activity on the
        others is somebody else's, or none, and no step waits for it.
        """
        used = self.used_gpus
        if len(used) < 2 or not len(self.steps):
            return used
        own_pct = {gpu: self._own_utilization_pct(gpu, *self.steps.extent_ns) for gpu in used}
        any_at_work = any(pct is not None and pct >= NO_WORK_PCT.default for pct in own_pct.values())
        return [gpu for gpu, pct in own_pct.items() if not any_at_work or pct is None or pct >= NO_WORK_PCT.default]

    def _own_utilization_pct(self, gpu: int, start_ns: int, end_ns: int) -> float | None:
        """Return the mean utilization of a GPU by this process; None if not sampled."""
        utilization = self.gpu_mean(gpu, "utilization_pct", start_ns, end_ns)
        of_others = self.gpu_mean(gpu, "utilization_other_pct", start_ns, end_ns)
        return None if utilization is None else utilization[0] - (of_others[0] if of_others else 0.0)

    def gpu(self, index: int) -> Mapping:
        return next((gpu for gpu in self.gpus if gpu["index"] == index), {})

    # -- questions -----------------------------------------------------------------------------

    def spans_of(self, part: str, *, enter: float, min_rows: int) -> list[tuple[Range, slice]]:
        """Return the spans of steps in which a part of the steps takes at least the share `enter` (0-1) of their time.

        Args:
            part: "wait", "callbacks" or "compile".
            min_rows: shorter spans are left out.

        Returns:
            Of each span its range, and the slice of the blocks it touches, for sums over its parts.
        """
        steps = self.steps
        # A run shorter than a span must be may be one as a whole.
        min_rows = min(min_rows, max(A_TREND, steps.total_rows))
        events = {"wait": "wait_events", "callbacks": "callback_events"}.get(part, "compile_events")
        rows, total = steps["rows"], steps["duration_ns"]
        series = Series(rows, total, steps[f"{part}_ns"], steps[f"top_{part}_ns"], steps[events], steps.rows_per_block)
        return self.spans_in(series, enter=enter, min_rows=min_rows)

    def spans_in(self, series: Series, *, enter: float, min_rows: int) -> list[tuple[Range, slice]]:
        """Return `spans_of` for a series that a rule made over the blocks of `steps`."""
        lost = np.concatenate([[0], np.cumsum(series.lost)])
        spans = find_spans(series, enter=enter, min_rows=min_rows)
        return [self.step_range(first, end, lost) for first, end in spans]

    def step_range(self, first: float, end: float, lost: np.ndarray) -> tuple[Range, slice]:
        """Return the steps and times of rows [first, end), and the slice of blocks that contains them.

        Longer pauses divide the range into parts; each part's share of the loss is interpolated within blocks.

        Args:
            first, end: rows from the start of the run, fractions included.
            lost: float (blocks + 1,), the loss before each block, and at last of all of them.
        """
        steps, pauses = self.steps, self.pauses
        size = steps.rows_per_block
        blocks = slice(int(first // size), min(len(steps), int(-(-end // size))))
        row_ns = float(steps["duration_ns"][blocks].sum()) / max(1, int(steps["rows"][blocks].sum()))
        if end - first > 3 * size:  # a change near a pause is at the pause, as far as blocks show it
            seams = pauses.rows[pauses.inside(-1.0, steps.total_rows + 1.0, row_ns)]
            first, end = (_nearest_place(seams, row, size) for row in (first, end))
        # Edges of the parts, and the rows before the end of each block.
        rows = [first, *pauses.rows[pauses.inside(first, end, row_ns)], end]
        ends = np.append(np.arange(len(steps)) * size, steps.total_rows)
        shares = np.diff(np.interp(rows, ends, lost))  # of the loss in each part, then 0-1
        shares /= max(1.0, float(shares.sum()))
        parts = []
        for a, b, share in zip(rows[:-1], rows[1:], shares.tolist(), strict=True):
            start_ns, end_ns = pauses.times(a, row_ns)[1], pauses.times(b, row_ns)[0]
            parts.append(Range(self._step_of(a), self._step_of(b), start_ns, max(end_ns, start_ns + 1), share=share))
        hull = Range(parts[0].start_step, parts[-1].end_step, parts[0].start_ns, parts[-1].end_ns)
        return replace(hull, parts=tuple(parts) if len(parts) > 1 else ()), blocks

    @functools.cached_property
    def pauses(self) -> Pauses:
        """Pauses between steps that do not follow one another."""
        return Pauses(self.steps, self.phases)

    def _step_of(self, row: float) -> int:
        """Return the number of the first step at or after a row."""
        steps, size = self.steps, self.steps.rows_per_block
        block = min(int(row // size), len(steps) - 1)
        return min(int(steps["first_step"][block] + row - block * size), int(steps["end_step"][block]))

    @cached
    def idle(self, start_ns: int, end_ns: int) -> Idle | None:
        """Return the idleness of the GPUs at work over a time range; None if utilization has too few samples.

        The mean over those GPUs, by this training's own utilization; time without a fit or process is left out.

        Args:
            start_ns, end_ns: ns since the epoch.
        """
        active_pct: list[float] = []
        sample_count, gpus = 0, []
        for index in self.working_gpus:
            utilization = self.use(index, start_ns, end_ns)
            if utilization is not None:
                # Others may work while we do not: that is not our work.
                of_others = self.gpu_mean(index, "utilization_other_pct", start_ns, end_ns, 1)
                active_pct.append(min(100.0, max(0.0, utilization.value - (of_others.value if of_others else 0.0))))
                sample_count += utilization.samples
                gpus.append(index)
        if not active_pct:
            return None
        mean = sum(active_pct) / len(active_pct)
        present = end_ns - start_ns - self.absent_ns(start_ns, end_ns)
        idle_ns = round(present * (1 - mean / 100))
        return Idle(mean, idle_ns, sample_count, tuple(gpus))

    def idle_in(self, where: Range) -> Idle | None:
        """Return the idleness of the GPUs at work in the parts of a range; None if utilization has too few samples."""
        if not where.parts:  # one stretch
            return self.idle(*where.extent_ns)
        starts, ends = np.array(where.intervals).T
        share, samples = self.idle_each(starts, ends)
        is_measured = np.isfinite(share)
        if samples < A_FEW or not is_measured.any():
            return None
        idle = float(np.average(share[is_measured], weights=(ends - starts)[is_measured]))
        gpus = tuple(gpu for gpu in self.working_gpus if self.column(gpu, "utilization_pct") is not None)
        return Idle(100 * (1 - idle), round(self.present_in(where) * idle), round(samples), gpus)

    def lost_of(self, ns: int, where: Range) -> int:
        """Return how much of a time in a range is lost: the GPUs' idle time at most, if it was sampled."""
        idle = self.idle_in(where)
        return ns if idle is None else min(ns, idle.idle_ns)

    def use(self, gpu: int, start_ns: int, end_ns: int) -> Mean | None:
        """Return a GPU's mean utilization (%) over a range, by any process; None with too few samples.

        A range too short for three samples is judged by the second around it: NVML's utilization is a mean over up to a
        second anyway. A range whose samples end soon after it began is not judged.

        Args:
            start_ns, end_ns: ns since the epoch.
        """
        mean = self.gpu_mean(gpu, "utilization_pct", start_ns, end_ns, A_FEW, MOSTLY)
        if mean is None:
            around = start_ns - AROUND_NS, end_ns + AROUND_NS
            mean = self.gpu_mean(gpu, "utilization_pct", *around, A_FEW, MOSTLY)
        return mean

    def resolution_ns(self) -> int:
        """Return the time resolution of the recorded means of utilization; 0 without any."""
        columns = [bins for gpu in self.used_gpus if (bins := self.column(gpu, "utilization_pct")) is not None]
        return max((bins.bin_ns for bins in columns), default=0)

    def lag_ns(self) -> int:
        """Return for how many ns after an event utilization may still show it.

        A reading is the mean of the time between two refreshes, and is held until the next one: twice the slowest GPU's
        refresh. `HOLD_NS` where a GPU's refresh is unknown.
        """
        refreshes_ms = [self.gpu(index).get("utilization_refresh_ms") for index in self.working_gpus]
        known_ms = [ms for ms in refreshes_ms if ms]
        return 2_000_000 * max(known_ms) if known_ms and len(known_ms) == len(refreshes_ms) else HOLD_NS

    def idle_each(self, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the idle share (0-1) of the GPUs at work in each of n time ranges.

        Args:
            start_ns, end_ns: int64 (n,), ns since the epoch.

        Returns:
            The mean over the sampled GPUs, float64 (n,), NaN where none was sampled; and the number of samples of one
            GPU that the shares rest on.
        """
        idle_of_gpus: list[np.ndarray] = []
        samples = 0.0
        for index in self.working_gpus:
            bins = self.column(index, "utilization_pct")
            if bins is None:
                continue
            active, count = bins.over_each("utilization_pct", start_ns, end_ns)
            of_others = self.column(index, "utilization_other_pct")  # other processes' work is no work of this training
            if of_others is not None:
                others_pct, _ = of_others.over_each("utilization_other_pct", start_ns, end_ns)
                active = active - np.nan_to_num(others_pct)
            idle_of_gpus.append(1 - np.clip(active, 0, 100) / 100)
            samples = max(samples, float(count.sum()))
        if not idle_of_gpus:
            return np.full(len(start_ns), np.nan), 0.0
        measured = np.isfinite(np.stack(idle_of_gpus))
        total = np.nan_to_num(np.stack(idle_of_gpus)).sum(axis=0)
        return np.where(measured.any(axis=0), total / np.maximum(1, measured.sum(axis=0)), np.nan), samples

    def stalled_pct(self, start_ns: np.ndarray, length_ns: np.ndarray) -> np.ndarray:
        """Return the part of each of n stretches in which the training thread did not train, %; float64 (n,).

        It waited for input, compiled, ran callbacks, or was between steps: nothing was launched on the GPUs.

        Args:
            start_ns, length_ns: int64 (n,), ns since the epoch and ns.
        """
        steps = self.steps
        if not len(steps):  # no step yet
            return np.full(len(start_ns), 100.0)
        begin, end = steps["start_ns"], steps["end_ns"]
        stalled_in_block = np.clip(end - begin - steps.own_ns, 0, end - begin)
        # The blocks' own, and between two blocks all of the time.
        stalled_ns_of_pieces = np.append(stalled_in_block, np.maximum(begin[1:] - end[:-1], 0))
        stood = EvenlySpread(np.append(begin, end[:-1]), np.append(end, begin[1:]), stalled_ns_of_pieces)

        def spent_by(at: np.ndarray) -> np.ndarray:
            # Before the first step and after the last one nothing trains either.
            return stood.before(at)[0] + np.minimum(at - begin[0], 0) + np.maximum(at - end[-1], 0)

        stalled_ns = spent_by(start_ns + length_ns) - spent_by(start_ns)
        return np.clip(100 * stalled_ns / np.maximum(length_ns, 1), 0, 100)

    @cached
    def clean_steps(self) -> CleanSteps | None:
        """Return the steps that neither wait nor compile, without the first ones, which warm up; None with too few.

        Their duration is the weighted median over blocks, so that a few slow ones do not count.
        """
        warm = self.steps["first_step"] >= self.first_step + WARM_UP.default
        rows, clean_ns = warm * self.steps["clean_rows"], self.steps["clean_ns"]
        has_rows, total = rows > 0, int(rows.sum())
        if total < WARM_UP.default:
            return None
        mean, steps_of_block = clean_ns[has_rows] / rows[has_rows], rows[has_rows]
        order = np.argsort(mean)
        at = int(np.searchsorted(np.cumsum(steps_of_block[order]), total / 2))
        return CleanSteps(float(mean[order][min(at, len(order) - 1)]), total)

    def step_at(self, time_ns: int) -> int:
        """Return the number of the step that ran at a time (the next one, if none did); 0 without steps.

        Args:
            time_ns: ns since the epoch.
        """
        if not len(self.steps):
            return 0
        starts = self.steps["start_ns"]
        block = int(np.searchsorted(starts, time_ns, side="right")) - 1
        if block < 0:  # before the first step
            return self.first_step
        rows, at_ns = self.pauses.edges(block)
        return self._step_of(float(np.interp(time_ns - int(at_ns[0]), at_ns - int(at_ns[0]), rows)))

    def range_of(self, start_ns: int, end_ns: int) -> Range:
        """Return a time range together with the steps that ran in it."""
        first = self.step_at(start_ns)
        return Range(first, max(first, self.step_at(end_ns)), start_ns, end_ns)
