"""The plugin's HTTP replies: every field, declared once. What could not be measured is None.

`make schemas` makes `frontend/src/api/types.ts` of it.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from gpu_util_callback.diagnosis.report_types import (
    AcceleratorWords,
    AnyFinding,
    Calm,
    JobVerdict,
    ShownRun,
    Since,
    Unit,
)
from gpu_util_callback.recording.manifest_facts import Bounds, Exactly, Status
from gpu_util_callback.recording.problems import ReportedProblem
from gpu_util_callback.words import Category, EvidenceRow

# --- ./runs ---------------------------------------------------------------------------------------


class StoredFindings(TypedDict):
    """The findings of a stored diagnosis, in short."""

    causes: NotRequired[list[str]]  # the costliest first
    titles: NotRequired[list[str]]
    lost_s: NotRequired[float | None]  # in all


class RecordingSummary(StoredFindings):
    """One line of the list of recordings."""

    id: str
    run: str
    session: str | None
    trial: NotRequired[str | None]
    trial_config: NotRequired[str | None]
    fit_index: NotRequired[int | None]
    fits: NotRequired[int | None]  # of one callback, which went on in this recording
    host: NotRequired[str | None]
    rank: NotRequired[int | None]
    status: Status
    job_source: NotRequired[str | None]  # "imported trace", where a profiler's files were
    start_ns: int | None
    end_ns: int | None
    steps: int | None
    verdict: NotRequired[str | None]
    revision: str | int  # 0 in an offline page


class CauseWords(TypedDict):
    """Title and appearance of a cause."""

    title: str
    glyph: str  # which no other cause has, so that neither it nor the colour has to be told apart alone
    colour: str  # name of a hue of the tab
    between_steps: bool  # its time lies between steps, mostly at the ends of epochs
    part: str  # of the host account, in which its time is counted; "" = in none


class Words(TypedDict):
    """The vocabulary of the terminal: words for causes; title and meaning of each category."""

    causes: dict[str, CauseWords]
    host: dict[str, Category]
    gpu: dict[str, Category]
    host_step: dict[str, Category]


class LogDirectory(TypedDict):
    """The log directory as shown to people."""

    logdir: str
    logdir_exists: NotRequired[bool | None]  # null where nobody knows: several directories, an object store


class RunsHead(LogDirectory):
    """The list of recordings without its lines."""

    version: int
    server_version: NotRequired[str]
    tensorboard_runs: list[str]
    looked_for: str
    words: NotRequired[Words]
    complete: NotRequired[bool]  # false while the server is still reading the runs: more may follow
    progress: NotRequired[tuple[int, int]]  # how many runs it has looked at so far, and of how many
    problems: list[ReportedProblem]


class RunsReply(RunsHead):
    """The list of recordings."""

    recordings: list[RecordingSummary]


# --- ./total --------------------------------------------------------------------------------------


class TrainingRow(TypedDict):
    """One training: its ranks and restarts together. Times of GPUs, or of the training where none was held."""

    id: str  # of the recording that stands for it: the last start's lowest rank
    recordings: list[str]  # ids of all its recordings; empty where that is the only one
    restarts: int
    ranks: int
    script: str | None
    user: str | None
    status: Status
    start_ns: int
    wall_s: float
    gpus: int  # that it held; without any, hours are its own
    hours: float
    lost: float | None  # null is not known: it was not judged, or its causes have no known cost
    saves: float | None
    causes: list[str]  # the costliest first, then those at no known cost
    top: str | None  # the cause that is worth fixing first


class HoursShare(TypedDict):
    """A part of all hours; no hour is in two of them."""

    part: str
    title: str
    hours: float


class CauseHours(TypedDict):
    """A cause, and the hours that it cost."""

    cause: str
    title: str
    hours: float
    saves: float
    trainings: int


class TotalReply(TypedDict):
    """The sums of all runs."""

    unit: Unit
    headline: str  # all in one sentence, as in the terminal
    notes: list[str]
    hours: float
    shares: list[HoursShare]
    causes: list[CauseHours]
    fixes: dict[str, str]  # what to do, of the runs that are worth fixing most
    left: NotRequired[int]  # runs that are still to be diagnosed: the next request knows more
    runs: list[TrainingRow]  # that whose fix saves most comes first


# --- ./recording ----------------------------------------------------------------------------------


class WordedFinding(AnyFinding):
    """A finding with its words."""

    rows: list[EvidenceRow]
    culprit: str  # what the evidence names: the slowest stage, the callback; "" where it names none
    fix: str  # findings that one change fixes have this in common
    part: str  # of a GPU's time that it takes, as a series of its lane is named; "" where it has none of its own


class Remedy(TypedDict):
    """The change that mends some findings of a row."""

    id: str  # the costliest finding that promises it
    saves_range_s: Bounds  # the least and the most that it saves of them all; of a question, if the answer is yes
    command: str  # that measures it; "" where it cannot be tried, or not from a script


class FindingRow(TypedDict):
    """Findings that are listed as one: of one cause, at one time or at several."""

    ids: list[str]  # in the order of the steps
    first: str  # the costliest
    lost_s: float | None  # in all
    remedies: dict[str, Remedy]  # by what findings that it mends have as `fix`


class WordedReport(ShownRun):
    """A run of the report as the tab shows it, with words; it is sent the whole run, for its export."""

    batch_size: int | None
    findings: list[WordedFinding]
    spans: list[WordedFinding]
    rows: list[FindingRow]  # all of them, in the order of the verdict
    lead: str | None  # `first` of the row that the verdict speaks of
    calm: Calm | None  # what the verdict says where nothing was found
    not_counted: dict[str, str]  # part of the time that is large and no finding's -> how much, and why
    levers: dict[str, str]  # what a run without findings does not use -> the change, or the command to try it
    au: AcceleratorWords | None


class Extent(TypedDict):
    """The steps and the times of a recording."""

    start_ns: int
    end_ns: int
    first_step: int
    last_step: int


class SeriesInfo(TypedDict):
    """A series of a lane."""

    name: str
    title: str


class LaneLimit(TypedDict):
    """The limit of a lane's values."""

    value: float
    title: str


class LaneInfo(TypedDict):
    """A lane of the timeline."""

    id: str
    group: str
    title: str
    unit: str
    kind: Literal["stack", "band", "time"]  # time: shares of each bucket, which add up to 100 %
    series: list[SeriesInfo]
    max: NotRequired[float | None]  # the end of its scale; null for that of its values
    note: NotRequired[str | None]
    minor: NotRequired[bool]  # nothing ever happened in it: it stands among a GPU's, or the host's, lesser lanes
    limit: NotRequired[LaneLimit | None]


class TimePart(TypedDict):
    """A part of a GPU's time, as a series of its lane is named."""

    name: str
    title: str
    seconds: float


class TimeBudget(TypedDict):
    """The sums of a lane of time; its parts add up to what is known of the training's time."""

    lane: str
    known_s: float
    # From when to when a GPU was read, since the recording's start: at the ends its mean stands for what nobody read.
    sampled_ns: tuple[float, float]  # (0, 0) where the time is exact
    is_estimate: bool  # the thread hands steps over in advance: its clocks say about when the GPU had nothing to do
    parts: list[TimePart]  # from the bottom of the lane to its top


class FinestLevels(TypedDict):
    """The finest level of an offline page's tiles, by axis."""

    step: int
    time: int


class PhaseReply(TypedDict):
    """A phase between steps, as in the `phases` table."""

    kind: str
    name: str
    start_ns: int
    end_ns: int
    step: int
    account: str
    count: int


class WindowInfo(TypedDict):
    """A profiler window: a few steps that were traced."""

    window: int
    first_step: int
    stop_step: int  # exclusive
    start_ns: int | None
    end_ns: int | None
    profile: str | None
    profile_run: str | None  # its name in the Profile tab
    events: int | None
    cost_s: float | None


class RecordingReply(TypedDict):
    """A recording."""

    id: str
    revision: str
    report: WordedReport
    extent: Extent
    lanes: list[LaneInfo]
    budgets: list[TimeBudget]  # of each lane of time
    finest: NotRequired[FinestLevels]  # absent where the server has every level
    phases: list[PhaseReply]  # the longest
    windows: list[WindowInfo]  # in the order of their steps
    problems: list[ReportedProblem]


# --- ./window -------------------------------------------------------------------------------------


class TracedStep(TypedDict):
    """One traced step on one GPU (-1: the host, where no GPU was traced), with `<category>_ns`."""

    step: int
    gpu: int
    start_ns: int | None
    duration_ns: int | None
    __extra_items__: NotRequired[float | None]


class KernelReply(TypedDict):
    """A kernel summed over a window and GPU; of GPU -1, an op on the host."""

    gpu: int
    name: str | None
    op: str | None
    count: int | None
    total_ns: int | None
    min_ns: int | None
    max_ns: int | None
    occupancy_pct: float | None
    registers: float | None
    blocks: float | None
    threads_per_block: float | None
    tensor_core: str | None


class StepKernels(TypedDict):
    """Kernels of each step with most time."""

    names: list[str]
    # [step, gpu, index of the name, count, total_ns, max_ns]
    rows: list[Annotated[list[int], Exactly(6)]]


class WindowReply(WindowInfo):
    """The contents of a profiler window."""

    steps: list[TracedStep]
    kernels: list[KernelReply]  # with most time
    kernels_left_out: int
    kernel_total_ns: dict[str, int]  # by GPU, of all kernels; "-1": ops on the host
    step_kernels: NotRequired[StepKernels]


# --- ./job ----------------------------------------------------------------------------------------


class WorkerClock(TypedDict):
    """A worker's clock minus the reference worker's at a time, `drift` more each ns."""

    offset_ns: int
    drift: float
    at_ns: int
    text: str


class WorkerReply(TypedDict):
    """One recording of a job."""

    id: str
    rank: int | None
    host: str | None
    status: NotRequired[Status]
    steps: NotRequired[int | None]
    end_ns: NotRequired[int | None]
    clock: NotRequired[WorkerClock | None]


class WaitRow(TypedDict):
    """Share of each cell of steps that a worker waits; of the late one, the share that its cause takes."""

    rank: int | None
    shares: list[float | None]


class Waits(TypedDict):
    """Share of the steps that the workers of a job wait for one of them."""

    rank: int  # the late one
    part: str  # the category of time that makes it late
    confidence: Literal["measured", "estimated"]  # estimated: from profiler windows, one share for all steps
    steps: list[int]  # edges of the cells, as numbers of steps
    ns: list[float]  # the same, since the shown recording began
    rows: list[WaitRow]


class JobReply(TypedDict):
    """A recording among its like: the workers of its job, findings across them, and the fit before it."""

    workers: list[WorkerReply]
    verdict: NotRequired[JobVerdict | None]  # null for a single process
    findings: list[WordedFinding]
    rows: list[FindingRow]
    waits: NotRequired[Waits | None]
    since: Since | None
