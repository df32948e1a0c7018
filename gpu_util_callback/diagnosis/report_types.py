"""The JSON of `gpu-util report` and `gpu-util total`: every field's type, range and meaning, declared once.

`make schemas` makes the JSON schemas and the tab's TypeScript types of it: the comment beside or
above a field is its description. What is unknown is None, never 0.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from gpu_util_callback.recording.manifest_facts import (
    AdviceFacts,
    AsRecorded,
    Bounds,
    Claim,
    Count,
    Energy,
    EpochUse,
    MemoryUse,
    Number,
    Overhead,
    PeakFacts,
    Percent,
    Piece,
    Scheduler,
    ShownFacts,
    Signed,
    Silent,
    Span,
    Status,
    Time,
    Unavailable,
    Within,
)
from gpu_util_callback.recording.problems import ReportedProblem

Version = Literal[1]
Unit = Literal["gpu_hours", "hours"]
Positive = Annotated[int, Within(1, 2**53)]


class Spread(TypedDict):
    """A distribution."""

    mean: float | None
    p5: float | None
    p50: float | None
    p95: float | None


class StepMs(TypedDict):
    """Durations of steps, input waits included."""

    mean: float | None
    p50: float | None
    p95: float | None


class Place(TypedDict, total=False):
    """A range of steps, half-open, and their times since the epoch; empty for a whole run."""

    start_step: Count
    end_step: Count
    start_ns: Time
    end_ns: Time
    pieces: list[Piece]


class AnyFinding(Claim, Place, total=False):
    """A finding about a whole run, or about a range of steps."""


class TraceDiagnosis(TypedDict):
    """The findings of the processes of one trace, and the causes that could be judged in no process."""

    verdict: str
    findings: list[AnyFinding]
    silent: list[Silent]


class Highest(TypedDict):
    """The largest of the samples."""

    max: Number | None


class MeanAndHighest(TypedDict):
    """The mean and the largest of the samples."""

    mean: float | None
    max: float | None


class PeakReport(PeakFacts):
    """The denominator of `mfu_pct`."""

    text: str  # the denominator in words


class GpuReport(TypedDict):
    """A GPU, and what training made of it."""

    index: int  # the framework's ordinal, or NVML's where it has none
    nvml_index: int | None
    uuid: str | None
    name: str | None
    label: str | None
    used_by_framework: bool
    compute_capability: str | None
    peak: PeakReport | None  # null where work or peak is not known
    # NVML's utilization: share of time in which a kernel or a copy ran; the mean is over the run's time.
    utilization_pct: Spread
    # Time between two of the driver's readings as observed in the run; each is the mean of it.
    utilization_refresh_ms: Count | None
    utilization_note: str | None  # what the readings cannot show: work and idling within most of them
    sm_active_pct: Spread
    throttled_pct: dict[str, float | None]  # share of time with lowered clocks, by reason: thermal, power, other
    memory_used_bytes: Highest
    memory_total_bytes: int | None
    memory_process_bytes: Highest
    unified_memory: bool  # the GPU shares the machine's memory, which is not counted as its
    mig: bool  # a MIG device: power and temperature are its board's
    power_mw: MeanAndHighest
    temperature_c: Highest
    samples: Count | None
    mfu_pct: NotRequired[Number | None]  # model FLOPs utilization: the model's work on this GPU against `peak`


class Mfu(TypedDict):
    """Model FLOPs utilization over the GPUs that share the work."""

    pct: float | None
    tflops: float | None  # what the model did per second
    peak_tflops: float | None  # sum of the GPUs' peaks
    precision: str | None
    text: str  # with its denominator


class TracedSteps(TypedDict):
    """The steps of the profiler windows, by GPU index: means of a step by category."""

    steps: Count
    per_gpu: dict[str, dict[str, float]]


class ProcessReport(TypedDict):
    """The account from the first fit of the process to its last so far."""

    fits: int
    wall_s: float | None
    fits_s: float | None
    compile_s: float | None
    between_s: dict[str, float]
    predict_set_up_s: float


# What the verdict on a run without findings says: only compiling took long; the GPU's part was not measured; ...
Calm = Literal["healthy", "compiling", "outside", "unexplained", "unjudged", "empty"]


class LossSums(TypedDict):
    """The cost of findings, and what their advice saves."""

    lost_s: float | None
    saves_s: float
    saves_range_s: Bounds


class Headline(LossSums):
    """The cause that the verdict is about: that whose advice saves most, else the costliest."""

    cause: str
    title: str
    ids: list[str]  # of its findings
    all_saves_s: float  # of all findings together
    faster_up_to: float | None


class Since(TypedDict):
    """The previous run of the same job: what its advice promised, and the gain."""

    id: str
    run: str
    gone: list[str]  # causes that this run does not have
    estimated: Bounds  # gains: times as fast; the most is null where it has no upper end
    got: float
    slower: bool  # by more than runs that are alike differ


class Cost(TypedDict):
    """The cost of a run, in the currency of the prices."""

    energy: Number | None
    gpu_hours: Number | None
    gpu_time: Number | None


class ShownRun(ShownFacts):
    """The part of a run that report and tab share."""

    run: str  # name of the TensorBoard run, "." for the log directory itself
    session: str  # runs with the same value are workers of one job
    fits: Positive  # of one callback, which went on in this recording
    status: Status
    wall_s: Number | None  # seconds of training
    steps: Count
    step_ms: StepMs
    # The training thread's time by category (step, input_wait, compile, validation, callbacks, other); adds up to
    # wall_s.
    time_s: dict[str, float]
    # By GPU index, an estimate: seconds of the run by category, which add up to wall_s; empty where unknown. `basis`:
    # windows or nvml.
    gpu_time_est: dict[str, dict[str, float | str]]
    gpus: list[GpuReport]
    traced: TracedSteps
    unavailable: list[Unavailable]  # what could not be measured
    overhead: Overhead  # what recording cost in this run
    energy: Energy | None  # of the GPUs in use over the whole run; null where no power was sampled
    verdict: str  # one sentence for people
    thresholds_set: dict[str, Signed]  # those that are not the default: `input_bound.wait_pct`


class RunReport(AsRecorded, ShownRun):
    """A run."""

    id: str  # unique within the report, and safe in URLs
    start_ns: Time | None  # since the epoch
    end_ns: Time | None
    between_fits_s: Number | None
    stopped_s: Number | None
    stuck_s: Number | None  # without a step while one was due; null where it was not watched
    process: ProcessReport | None
    # Samples trained per second of steps and input waits, without validation and compiling.
    samples_per_s: Number | None
    mfu: Mfu | None
    au_pct: Percent | None  # accelerator utilization by MLPerf Storage's definition: the mean of the epochs
    au_epochs: list[EpochUse]  # [] where not known, and of more than 1,024 epochs
    memory: MemoryUse | None  # null where no memory was sampled
    energy_j_per_sample: Number | None  # total_j over the samples of all steps; null where the batch size is not known
    headline: Headline | None  # null where the verdict is about no finding of a known cost
    rules_version: int
    thresholds: dict[str, dict[str, Signed]]
    silent: list[Silent]  # causes that could not be judged
    problems: list[ReportedProblem]  # files that could not be read
    since: NotRequired[Since | None]
    cost: NotRequired[Cost]  # with --price-per-kwh or --price-per-gpu-hour
    findings: list[Claim]  # that hold for the whole run
    spans: list[Span]  # findings of a part of the run; not among `findings`


class RankClock(TypedDict):
    """The clock of a worker, minus that of the reference."""

    rank: int
    offset_ms: float
    steps: int
    text: str


class UnknownClock(TypedDict):
    """A worker whose clock is not known."""

    rank: int
    reason: str


class ClocksReport(TypedDict):
    """The clocks of the workers of a job."""

    reference: int | None  # rank
    workers: list[RankClock]
    unknown: list[UnknownClock]


class WorkerGroup(TypedDict):
    """Workers of a job that are alike: the same causes at about the same cost."""

    ids: list[str]
    ranks: list[int]
    text: str  # the verdict of the worst of them
    lost_s: float


class JobVerdict(TypedDict):
    """The verdict on a job of several workers."""

    text: str
    id: str  # of the recording that it is about: the one to open first
    rank: int
    finding: str | None  # id of the job's finding behind it; null where it is a worker's own verdict
    lost_s: float | None
    saves_s: float | None
    wall_s: float | None
    faster_up_to: float | None
    advice: AdviceFacts | None
    groups: list[WorkerGroup]  # the worst first


class SessionReport(TypedDict):
    """The workers of one job, or a single process."""

    session: str
    ranks: list[int]
    verdict: JobVerdict | None  # null for a single process
    findings: list[Claim]
    clocks: ClocksReport | None


class ComparedRun(TypedDict):
    """A run beside the baseline."""

    id: str
    run: str
    session: str
    status: Status
    steps: Count
    ms_per_step: float | None  # input waits included
    batch_size: int | None
    ms_per_sample: float | None
    speed: float | None  # against the baseline, by sample where both know their batch size; null: not comparable
    gpu_active_pct: float | None
    time_pct: dict[str, float]
    lost_s: float
    causes: list[str]
    unreadable: bool  # some of its rows cannot be read
    gone: list[str]  # causes that the baseline has, and it has not
    new: list[str]


class Comparison(TypedDict):
    """All runs with the first."""

    baseline: str
    runs: list[ComparedRun]


class Failure(TypedDict):
    """A limit that a run breaks."""

    run: str
    id: str
    reason: str


class CheckReport(TypedDict):
    """The outcome of limits."""

    passed: bool
    failures: list[Failure]


class LogdirReport(TypedDict):
    """The output of `gpu-util report --json`.

    Version 1. Fields may be added; those described here keep their name, type and meaning. What is
    unknown is null, never 0.
    """

    version: Version
    runs: list[RunReport]  # in the order of the command line, then by start
    sessions: list[SessionReport]
    problems: NotRequired[list[ReportedProblem]]
    comparison: NotRequired[Comparison]  # of more than one run with the first
    check: NotRequired[CheckReport]  # with --check or a limit


class AcceleratorWords(TypedDict):
    """Accelerator utilization, next to the limits of the benchmark that defines it."""

    name: str
    value: str
    limits: str
    text: str


# --- gpu-util total -------------------------------------------------------------------------------


Part = Literal["productive", "lost", "other", "not_judged"]


class Hours(TypedDict):
    """Disjoint parts of the total."""

    total: float
    productive: float  # training steps in which no cause of a loss was found
    lost: float
    other: float  # around the steps, and no cause was found
    not_judged: float


class Spent(TypedDict):
    """Hours of the GPUs that the runs held, and of the trainings themselves."""

    gpu_hours: Hours
    hours: Hours


class CauseCost(TypedDict):
    """The hours that a cause cost, and that fixing it saves."""

    gpu_hours: float
    hours: float
    saves_gpu_hours: float
    saves_hours: float


class Loss(CauseCost):
    """A cause, and its cost to a training."""

    cause: str


class TotalCause(Loss):
    """A cause, and its cost to all trainings."""

    title: str
    trainings: Count


class UnknownCost(TypedDict):
    """A cause at a cost that is not known."""

    cause: str
    title: str
    trainings: Count


class Restart(TypedDict):
    """A start of a training that continues an earlier one."""

    id: str
    because: str
    begins: int | None  # the training's step that it started at


class TopCause(TypedDict):
    """The cause whose fix saves most."""

    cause: str
    title: str
    advice: AdviceFacts | None


class TrainingReport(Spent):
    """One training: its ranks and restarts together."""

    run: str
    logdir: str
    id: str
    recordings: list[str]
    ranks: Count
    script: str | None
    user: str | None
    hosts: list[str]
    scheduler: Scheduler | None
    status: Status
    start_ns: int
    end_ns: int
    wall_s: float
    steps: int | None  # each counted once; null where it is not known which were done again
    restarts: list[Restart]
    gpus: Count
    lost: list[Loss]
    unknown_cost: list[str]  # causes that were found at a cost that is not known
    saves_gpu_hours: float
    saves_hours: float
    top: TopCause | None


class WithoutGpu(TypedDict):
    """Recordings that held no GPU."""

    recordings: Count
    hours: float


class GpuActive(TypedDict):
    """Time in which NVML saw a kernel or a copy running, of the time in which that was measured."""

    gpu_hours: float | None
    of_gpu_hours: float


class TotalCost(TypedDict):
    """The cost of the GPU-hours, in the currency of the price."""

    per_gpu_hour: Number
    total: Number
    lost: Number
    saves: Number


class Restarts(TypedDict):
    """Restarts of all trainings."""

    trainings: Count
    restarts: Count
    steps_done_again: Count
    unknown: Count


class ReadReport(TypedDict):
    """The manifests that were read."""

    manifests: Count
    diagnosed: Count
    older_rules: Count
    problems: list[ReportedProblem]


class TotalSums(Spent):
    """The sums of all runs."""

    version: Version
    recordings: Count
    imported: Count  # recordings made of a profiler's file; not counted
    trainings: Count  # recordings, with ranks, restarts and resumes of one training joined
    unit: Unit  # the hours to look at: hours where no run held a GPU
    without_gpu: WithoutGpu
    gpu_active: GpuActive
    causes: list[TotalCause]  # the most expensive first
    cost: NotRequired[TotalCost]  # with --price-per-gpu-hour; absent without it
    unknown_cost: list[UnknownCost]
    runs: list[TrainingReport]  # one a training, ordered by what fixing it saves
    restarts: Restarts
    read: ReadReport


class Total(TotalSums):
    """The output of `gpu-util total --json`.

    Version 1. Fields may be added; those described here keep their name, type and meaning. What is
    unknown is null, never 0. Hours of "gpu_hours" are those of the GPUs that the runs held, hours of
    "hours" those of the trainings themselves.
    """

    logdirs: list[str]
