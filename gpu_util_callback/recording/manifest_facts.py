"""The facts of a manifest: every field's type, range and meaning, declared once and checked on reading.

A field that is not as declared is left out and reported; the rest stays. Three kinds of values go
as a whole, because they can be recomputed from the rows or mean nothing in part: the stored
diagnosis, the account, and an entry of a list whose `Key` is wrong. Fields that are not declared
here (a newer version's) are kept if they are plain JSON with finite numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

# Nanoseconds since the epoch, up to the year 2116: sums with other times cannot overflow.
MOST_NS = 2**62
# Longer than any training; a view of it still has numbers for all its buckets.
MOST_LENGTH_NS = 2**59
# Larger integers are not exact as floating-point numbers, in JavaScript either.
MOST_COUNT = 2**53
MOST_GPUS = 4096
MOST_TEXT = 1 << 16
MOST_ENTRIES = 1 << 17
DEEPEST = 32
# Parts of an account may exceed the whole by this much: they were rounded, or overlapped a little.
ROUNDED, ROUNDED_S = 0.005, 0.001
# A share measured over unequal times may exceed 100 %.
MOST_PCT = 110.0


class Within:
    """A range of numbers, both ends included."""

    def __init__(self, least: float, most: float):
        self.least, self.most = least, most


class Whole:
    """Any error inside leaves out the object as a whole.

    Args:
        apart: fields that are kept even so, as they cannot be recomputed.
    """

    def __init__(self, *apart: str):
        self.apart = apart


class Exactly:
    """The length of a list."""

    def __init__(self, length: int):
        self.length = length


class _Mark:
    pass


# An invalid value of this field invalidates the whole object.
Key = _Mark()
# The report shows this object, and promises none of its fields.
Unpromised = _Mark()

Time = Annotated[int, Within(0, MOST_NS)]
Count = Annotated[int, Within(0, MOST_COUNT)]
Number = Annotated[float, Within(0, 1e18)]
Signed = Annotated[float, Within(-1e18, 1e18)]
Percent = Annotated[float, Within(0, 100.5)]
Share = Annotated[float, Within(0, 1)]
GpuIndex = Annotated[int, Within(0, MOST_GPUS - 1)]
# Of a recording; "lost": live by its manifest, but its heartbeat ended, or its process.
Status = Literal["live", "ended", "interrupted", "lost"]
# Of a piece of evidence.
Value = Signed | str | bool | None
# The least and the most.
Bounds = Annotated[list[Number], Exactly(2)]


class Framework(TypedDict, total=False):
    """The framework that trains."""

    name: str
    version: str
    backend: str
    keras: str
    python: str
    guessed: bool
    device: str
    eager_by: str
    cuda_build: bool
    cuda: str
    cudnn: str | int
    collectives: str


class Model(TypedDict, total=False):
    """The model that is trained."""

    name: str
    parameters: Count
    trainable_variables: Count


class Replica(TypedDict, total=False):
    """A device of this process in a distribution."""

    gpu: Annotated[GpuIndex, Key]
    replica: Count
    shard: Count


class OwnCallback(TypedDict, total=False):
    """A class of the user's callbacks: how often they run, and the argument that sets it.

    `library` is the installed package that it comes from, whose code is nobody's to edit.
    """

    every: dict[str, Count]
    names: dict[str, str]
    monitor: str
    library: str


class Dispatch(TypedDict, total=False):
    """The execution of a loop's step, from samples of the training thread."""

    samples: Count
    eager: Count
    compiled: Count
    predict_set_up: Count
    function: str
    operations: Count
    between: Count  # samples between the steps
    between_predict: Count
    between_predict_set_up: Count
    between_input: Count  # in the iterator of a dataset


class InputCall(TypedDict, total=False):
    """A Python function that makes the input; its times are means per call, of its thread."""

    name: Annotated[Required[str], Key]
    calls: Annotated[Required[Count], Key]
    timed: Count
    wall_ms: Number
    cpu_ms: Number
    queued_ms: Number  # of the duration: ready to run, and no core was free


class InputArray(TypedDict, total=False):
    """An array given to `fit`, or one of the first batch; its values are those of its first rows.

    `integers`: all of them are whole numbers.
    """

    dtype: Annotated[Required[str], Key]
    rank: Count
    rows: Count
    bytes: Count
    min: Signed
    max: Signed
    integers: bool


class InputMap(TypedDict, total=False):
    """A stage of a tf.data pipeline that calls a function, named as in the `pipeline` table."""

    name: Annotated[Required[str], Key]
    which: Annotated[Required[Literal["train", "validation"]], Key]
    random: Annotated[Required[bool], Key]  # draws random numbers, others in each call
    python: Annotated[Required[bool], Key]  # calls Python functions


class Fit(TypedDict, total=False):
    """The parameters of the training, and its input."""

    loop: str
    timing: str
    epochs: Count
    first_epoch: Count  # counted from 0; more where a training is resumed
    first_iteration: Count  # of the optimizer, when the first epoch begins
    steps_per_epoch: Count
    batch_size: Count
    steps_per_execution: Annotated[int, Within(1, MOST_COUNT)]
    gradient_accumulation_steps: Count
    jit_compile: bool
    run_eagerly: bool
    mixed_precision: str | bool
    optimizer: str
    strategy: str
    replicas: list[Replica]
    input_kind: str
    input_class: str
    input_workers: Count
    input_processes: bool
    input_queue: Count
    input_persistent_workers: bool
    input_pin_memory: bool
    input_iterable: bool
    input_autotune: bool
    # Of each tensor of a batch its sizes; [smallest, largest] of one that varied.
    input_dims: list[list[Count | list[Count] | None] | None]
    input_beside: list[str]
    input_ready_pct: Percent
    input_handover_ms: Number
    input_maps: list[InputMap]
    input_shuffle_bytes: Count  # of its shuffle buffers when full, if elements have one size
    input_calls: list[InputCall]
    input_first: list[InputArray]
    step_threads: Count  # that a step may use on the CPU
    training_cpu_s: Number  # of the training thread
    validation_kind: str
    validation_class: str
    validation_workers: Count
    validation_processes: bool
    validation_split: Share
    variables: dict[str, str]
    callbacks: dict[str, OwnCallback]
    dispatch: Dispatch


class PeakFacts(TypedDict, total=False):
    """The most a GPU does in the precision that the model computes in."""

    tflops: Annotated[Required[Number], Key]  # dense
    precision: Annotated[Required[str], Key]  # fp16, bf16, tf32 or fp32
    source: str  # address of the data sheet
    derived: str  # how it was computed, where it is on no data sheet


class WorkFacts(TypedDict, total=False):
    """The model's work."""

    # Of training, forward and backward, two a multiply-add; matrix products and convolutions.
    flops_per_sample: Annotated[Required[Number], Key]
    source: Annotated[Required[Literal["counted", "given"]], Key]


class Throughput(TypedDict, total=False):
    """Samples trained, and the time of training: steps and waits, without compiling."""

    samples: Annotated[Required[Count], Key]
    training_s: Annotated[Required[Number], Key]


class Gpu(TypedDict, total=False):
    """A GPU of this process."""

    index: Annotated[Required[GpuIndex], Key]
    nvml_index: GpuIndex
    uuid: str
    name: str
    label: str
    used_by_framework: bool
    memory_total_bytes: Annotated[int, Within(0, 2**60)]
    compute_capability: str | list[Count]
    pci_bus_id: str
    mig: bool
    matched_by: str
    power_limit_mw: Count
    power_default_mw: Count
    sm_clock_max_mhz: Count
    pcie_generation_max: Count
    pcie_width_max: Count
    cores: Count
    multiprocessors: Count  # of a MIG device
    peak: PeakFacts
    persistence_mode: bool
    power_instant: bool  # the driver's instantaneous reading, not its mean over up to a second
    utilization_refresh_ms: Count  # as seen in the run: a reading is the mean of as long before it


class Scheduler(TypedDict, total=False):
    """The scheduler's job; the same after a restart by the scheduler."""

    name: Annotated[Required[str], Key]
    job: Annotated[Required[str], Key]
    restarts: Count


class Machine(TypedDict, total=False):
    """The machine it is trained on."""

    system: str
    cpu: str
    cpu_float16: bool
    cpus: Count
    cpus_allowed: Count
    cpu_quota: Number
    memory_total_bytes: Count
    memory_limit_bytes: Annotated[int, Within(0, MOST_NS)]
    address_space_limit_bytes: Annotated[int, Within(0, MOST_NS)]


class Kept(TypedDict, total=False):
    """A list of the user's program that gained items while it trained."""

    name: Annotated[Required[str], Key]
    of: str  # "callback", "metric", "model" or "program"
    per_step: Number
    items: Count
    bound: Count  # a deque's `maxlen`
    item_bytes: Count  # of its newest item
    graph: bool  # its items keep their history of gradients
    weights: bool  # its items are lists of arrays


class OutOfMemoryFacts(TypedDict, total=False):
    """The error with which a training ran out of memory, and what was known then."""

    error: Annotated[Required[str], Key]
    message: str
    where: str
    gpu: GpuIndex
    step: Count
    batch_size: Count
    shapes: list[str]
    asked_bytes: Annotated[int, Within(0, MOST_NS)]
    free_bytes: Annotated[int, Within(0, MOST_NS)]
    others_bytes: Annotated[int, Within(0, MOST_NS)]
    reserved_bytes: Annotated[int, Within(0, MOST_NS)]
    stacks: str  # a file beside the manifest: who held the memory
    time_ns: Time


class MemoryFacts(TypedDict, total=False):
    """Memory that grew, and memory that ran out."""

    kept: list[Kept]
    functions: Count
    functions_per_step: Number
    compilations_per_step: Number
    graph_operations_per_step: Number
    batch_sizes: dict[str, Count]  # by the ids of the first shapes
    oom_kills: dict[str, Count]
    control_group: str  # in which kills of this process are counted
    group_inode: Count
    out_of_memory: OutOfMemoryFacts


class Driver(TypedDict, total=False):
    """Versions of the NVIDIA driver."""

    driver_version: str
    nvml_version: str
    cuda_version: str


class GpuCheck(TypedDict, total=False):
    """Why the training uses none of the GPUs, as seen on the spot."""

    reason: Annotated[Required[str], Key]
    cure: str
    code: str


class Unavailable(TypedDict, total=False):
    """A source that could not be measured, and the remedy."""

    source: Annotated[Required[str], Key]
    reason: Annotated[Required[str], Key]
    cure: str


class Overhead(TypedDict, total=False):
    """The cost of recording."""

    callback_us_per_step: Number
    sampler_cpu_pct: Number
    recorder_cpu_pct: Number
    hz: Number
    windows_s: Number


class WindowFacts(TypedDict, total=False):
    """A profiler window."""

    window: Annotated[Required[Count], Key]
    first_step: Annotated[Required[Count], Key]
    stop_step: Annotated[Required[Count], Key]
    start_ns: Time
    end_ns: Time
    profile: str
    events: Count
    cost_s: Number
    look: str  # the request of `gpu-util look` that it answers


class Refused(TypedDict):
    """A profiler window that was asked for and not taken."""

    look: str
    reason: str


class AccountFacts(TypedDict, total=False):
    """The host account: its categories sum to the wall time."""

    wall_s: Required[Annotated[float, Within(0, MOST_LENGTH_NS / 1e9)]]
    time_s: Required[dict[str, Signed]]
    between_fits_s: Annotated[float, Within(0, MOST_LENGTH_NS / 1e9)]  # of a series: in no category
    stopped_s: Annotated[float, Within(0, MOST_LENGTH_NS / 1e9)]  # the process was: in no category


class ProcessFacts(TypedDict, total=False):
    """The time of a process from its first fit to its last so far."""

    fits: Required[Count]
    fits_s: Required[Number]
    compilations: Count
    compile_s: Number
    between_s: Required[dict[str, Number]]  # by name
    waiting_s: Number  # for the user, not part of it
    predict_set_up_s: Number


class AdviceFacts(TypedDict, total=False):
    """The remedy for a finding."""

    text: Required[str]
    code: Required[str]  # to paste; "" without
    before: str  # what the code replaces; "" where that is not known
    question: bool  # a condition was not observed: the code helps if the answer is yes
    changes: str  # what else the code changes: order, weights, a metric; "" = nothing


class Claim(TypedDict, total=False):
    """A finding about a whole run."""

    id: Required[str]  # unique within its run or session
    cause: Required[str]  # a stable id, e.g. input_bound; `gpu-util report --rules` lists all
    title: Required[str]  # for people; may be worded differently in any version
    lost_s: Required[Number | None]  # seconds that it cost; no second is counted twice within a run
    saves_s: Number | None  # seconds that following the advice saves, at most
    # The least and the most seconds that following the advice saves; of a question, if the answer is yes.
    saves_range_s: Bounds | None
    # Duration of the script with several fits that it is about; absent where it is about this recording alone.
    of_s: Number
    severity: Required[Share | None]  # share of its time that was lost
    confidence: Required[Literal["measured", "estimated"]]
    evidence: Required[dict[str, Value]]  # what was observed; units are the ends of the names
    threshold: Required[dict[str, Signed | None]]  # the limits that were crossed, by the name of the evidence
    advice: Required[AdviceFacts]
    gpus: Required[list[GpuIndex]]
    ranks: Required[list[Count]]


class Span(Claim, total=False):
    """A finding about a range of steps, half-open."""

    start_step: Required[Count]
    end_step: Required[Count]  # exclusive
    start_ns: Required[Time]  # since the epoch
    end_ns: Required[Time]


class Silent(TypedDict, total=False):
    """A cause that could not be judged."""

    cause: Required[str]
    reason: Required[str]


class GpuEnergy(TypedDict, total=False):
    """The energy of a GPU over a run, and what it was computed from."""

    index: Annotated[Required[GpuIndex], Key]
    energy_j: Required[Number]
    source: Required[Literal["energy counter", "power samples"]]
    measured_s: Required[Number]


class Energy(TypedDict, total=False):
    """The energy of the GPUs in use, split by the training thread's activity."""

    total_j: Required[Number]
    estimated: Required[bool]  # true: from power samples, as the driver has no energy counter
    measured_s: Required[Number]  # seconds that samples cover
    by_time_j: Required[dict[str, Number]]  # by category of time_s: what the training thread did meanwhile
    gpus: Required[list[GpuEnergy]]


class EpochUse(TypedDict, total=False):
    """The accelerator utilization of an epoch."""

    epoch: Required[Count]
    steps: Required[Count]  # all but the first, which is left out
    au_pct: Required[Percent]


class AcceleratorUseFacts(TypedDict, total=False):
    """The accelerator utilization by MLPerf Storage's definition."""

    pct: Required[Percent]
    epochs: Required[list[EpochUse]]


class HostMemory(TypedDict, total=False):
    """The host memory of a run."""

    peak_bytes: Required[Number]  # of this process: what the kernel cannot take back
    workers_peak_bytes: Required[Number | None]  # of its worker processes together
    limit_bytes: Required[Number | None]
    limited_by: Required[str | None]  # container, ulimit -v or machine


class GpuMemory(TypedDict, total=False):
    """The memory of a GPU, as the framework's allocator has it."""

    index: Annotated[Required[GpuIndex], Key]
    live_peak_bytes: Required[Number]
    reserved_peak_bytes: Required[Number | None]
    others_peak_bytes: Required[Number | None]  # of other processes
    limit_bytes: Required[Number]
    bytes_per_sample: Required[Number | None]  # by a line through the batch sizes that ran
    room_for_batch: Required[Count | None]  # the largest batch that fits


class MemoryGrowthFacts(TypedDict, total=False):
    """Memory that grows and is not given back; the last two are projections."""

    group: Required[str]
    column: Required[str]
    bytes_per_step: Required[Number]
    since_step: Required[Count]
    since_ns: Required[Time]
    until_ns: Required[Time]
    from_bytes: Required[Number]
    to_bytes: Required[Number]
    limit_bytes: Required[Number | None]
    full_at_step: Required[Count | None]
    full_in_s: Required[Number | None]


class MemoryUse(TypedDict, total=False):
    """The memory of a run."""

    host: Required[HostMemory | None]
    gpus: Required[list[GpuMemory]]
    growth: Required[list[MemoryGrowthFacts]]


class DiagnosisFacts(TypedDict, total=False):
    """The recorder's findings, with its rules and thresholds; if damaged, the latter alone."""

    rules_version: int
    thresholds: dict[str, dict[str, Signed]]
    thresholds_set: dict[str, Signed]
    verdict: Required[str]
    gpu_active_pct: dict[str, Percent]
    memory: MemoryUse | None
    energy: Energy | None
    au: AcceleratorUseFacts | None
    findings: Required[list[Claim]]
    spans: Required[list[Span]]
    silent: list[Silent]


class SourceStage(TypedDict, total=False):
    """A stage of a trace's input pipeline."""

    name: Annotated[Required[str], Key]
    path: Annotated[Required[str], Key]
    self_ms: Number


class SourceCopies(TypedDict, total=False):
    """A trace's copies between host and GPU of one direction and kind of host memory."""

    direction: str
    memory: str  # "pageable", "pinned", "managed", "unknown"
    bytes: Number | None
    total_ns: Required[Number]


class SourceGpu(TypedDict, total=False):
    """A GPU of a trace."""

    index: Annotated[Required[GpuIndex], Key]
    at_work: bool
    linked_kernels: Count
    short_kernels_pct: Percent
    copies: list[SourceCopies]


class SourceLateRank(TypedDict, total=False):
    """The rank that a trace's collectives wait for."""

    name: Required[str]
    waited_pct: Required[Percent]


class SourceOnce(TypedDict, total=False):
    """Costs in a trace that are paid once."""

    name: Required[str]
    longest_ns: Required[Time]
    idle_ns: Required[Time]  # of the GPUs, in all such costs


class SourceHostCalls(TypedDict, total=False):
    """Calls of the host's code by the compiled steps of a trace."""

    name: Required[str]
    total_ns: Required[Time]
    idle_ns: Required[Time]  # of the GPUs meanwhile
    idle_host_ns: Required[Time]  # the part of it in which nothing was launched


class SourceFacts(TypedDict, total=False):
    """The profiler's file that a recording was imported from."""

    tool: str
    format: str
    files: list[str]
    steps_from: str
    steps_judged: bool
    idle_judged: bool
    host_traced: bool
    tpu: bool
    fetches: Count
    host_activity: str
    slowest_stage: SourceStage | None
    trains: bool
    collectives: str
    late_rank: SourceLateRank | None
    once: SourceOnce | None
    host_calls: SourceHostCalls | None
    uploaded_ns: Number
    gpus: list[SourceGpu]
    cannot_know: list[str]


class CeilingsInstead(TypedDict, total=False):
    """Rates of another input with the same model: least and most of several turns."""

    input_per_s: Number
    together_per_s: list[Number]
    beside_per_s: list[Number]
    batch_size: Count | None
    passed: bool
    gain: list[Number]  # in samples where both batch sizes are known


class CeilingsFacts(TypedDict, total=False):
    """Rates of the input alone, the model alone and both together, measured before training."""

    input_per_s: Required[Number]
    model_per_s: Required[Number]
    together_per_s: Required[Number]
    batch_size: Count
    seconds: Number
    framework: str
    ceiling: Literal["input", "model", "both"]
    input_gain: Number
    model_gain: Number
    overlap_gain: Number
    instead: CeilingsInstead


class Facts(TypedDict, total=False):
    """All facts of a manifest."""

    format: Required[list[int]]
    writer: str
    folder: str
    redacted: bool
    # The process and its job, and whether it is still alive.
    host: str
    pid: Count
    boot_id: str
    pid_namespace: str
    process_started: Count
    rank: Count
    world_size: Count
    job: str
    job_source: str
    fit_index: Count
    fits: Count  # of a series, so far
    script: str
    user: str
    scheduler: Scheduler
    trial: str
    trial_of: str
    trial_config: str
    status: Literal["live", "ended", "interrupted"]
    started_ns: Time
    ended_ns: Time
    heartbeat_ns: Time
    heartbeat_wall_ns: Time
    flush_s: Annotated[float, Within(0, 1e6)]
    flushes: Count
    sealed: Count  # the segments written
    covered: Count  # the first of them, which top.npz covers
    rows: dict[str, Count]
    dropped_rows: Count
    scalar_step_offset: Count
    # The model, the framework and the hardware.
    framework: Framework
    model: Model
    fit: Fit
    ceilings: Annotated[CeilingsFacts, Whole()]
    gpus: list[Gpu]
    work: WorkFacts
    throughput: Throughput
    machine: Machine
    driver: Driver
    memory: MemoryFacts
    gpu_check: list[GpuCheck]
    unavailable: list[Unavailable]
    overhead: Overhead
    windows: list[WindowFacts]
    look_refused: Annotated[Refused, Whole()]
    source: SourceFacts
    # The diagnosis.
    account: Annotated[AccountFacts, Whole()]
    process: Annotated[ProcessFacts, Whole()]
    diagnosis: Annotated[DiagnosisFacts, Whole("thresholds_set")]


# --- checking -------------------------------------------------------------------------------------


# (location, error) of each value that was left out
_Problems = list[tuple[str, str]]


class _NotKept(Exception):
    """A value that is left out, with the problems that are not listed yet."""

    problems: Sequence[tuple[str, str]] = ()


class _Wrong(_NotKept):
    """A value that is not as declared; `where` grows from the inside out."""

    def __init__(self, complaint: str, where: str = ""):
        super().__init__(complaint)
        self.complaint, self.problems = complaint, [(where, complaint)]


class _LeftOut(_NotKept):
    """The object is left out as a whole; its reason is listed already."""


# (value, problems so far) -> the value; raises _NotKept
_Check = Callable[[Any, _Problems], Any]


def checked(manifest: Mapping[str, Any]) -> tuple[Facts, list[str]]:
    """Return the declared facts of a manifest, and one line for each part that was left out.

    Raises: ValueError where it is not a manifest at all.
    """
    problems: _Problems = []
    try:
        facts: Facts = _checker(Facts)(manifest, problems)
    except _NotKept as error:
        raise ValueError("it names no format") from error
    for check in (_check_times, _check_account, _check_gpus):
        check(facts, problems)
    return facts, [f"{where.lstrip('.')} {complaint}" for where, complaint in problems]


def valid(kind: Any, name: str, value: Any) -> Any:
    """Return a value for this field of a declared object, None where the field cannot hold it."""
    try:
        return None if value is None else _checker(_hints(kind)[name])(value, [])
    except _NotKept:
        return None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def encodable(text: str) -> str:
    """Return text that can be written as UTF-8: JSON may hold lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# Type of a declared field -> the types of its values in JSON.
_JSON_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    list: (list,),
    dict: (dict,),
}


@cache
def _checker(kind: Any) -> _Check:
    """Return the check of a declared type; built once."""
    kind, marks = unwrapped(kind)
    check = _plain_checker(kind, marks)
    whole = next((mark for mark in marks if isinstance(mark, Whole)), None)
    return check if whole is None else _whole(check, _object(kind, whole.apart), whole.apart)


def unwrapped(kind: Any) -> tuple[Any, list[Any]]:
    """Return a type without its annotations, and the annotations."""
    marks: list[Any] = []
    while get_origin(kind) in (Annotated, Required, NotRequired):
        kind, *more = get_args(kind)
        marks += more
    return kind, marks


def _plain_checker(kind: Any, marks: list[Any]) -> _Check:
    origin = get_origin(kind)
    if kind in (int, float):
        return _number(kind, next((mark for mark in marks if isinstance(mark, Within)), None))
    if kind is str:
        return _text
    if kind is bool:
        return _flag
    if origin is Literal:
        return _one_of(get_args(kind))
    if origin is list:
        return _entries(_checker(get_args(kind)[0]))
    if origin is dict:
        return _dictionary(_checker(get_args(kind)[1]))
    if origin in (Union, UnionType):
        return _either([member for member in get_args(kind) if member is not NoneType])
    if is_typeddict(kind):
        return _object(kind)
    raise TypeError(f"a manifest holds no {kind!r}")


def _number(kind: type, within: Within | None) -> _Check:
    least, most = (within.least, within.most) if within else (-MOST_COUNT, MOST_COUNT)
    kinds = _JSON_TYPES[kind]
    why = "a whole number" if kind is int else "a number"
    if within and most < MOST_COUNT:
        why += f" from {least:.10g} to {most:.10g}"
    elif least == 0:
        why += ", 0 or more"

    def check(value: Any, problems: _Problems) -> Any:
        # Comparing leaves NaN out, and takes integers of any size.
        if type(value) in kinds and least <= value <= most:
            return value
        raise _wrong(value, why)

    return check


def _text(value: Any, problems: _Problems) -> str:
    if type(value) is not str or len(value) > MOST_TEXT:
        raise _wrong(value, "a text")
    return value if value.isascii() else encodable(value)


def _flag(value: Any, problems: _Problems) -> bool:
    if type(value) is not bool:
        raise _wrong(value, "true or false")
    return value


def _one_of(words: tuple[str, ...]) -> _Check:
    def check(value: Any, problems: _Problems) -> str:
        if not isinstance(value, str) or value not in words:
            raise _wrong(value, f"one of {', '.join(words)}")
        return value

    return check


def _either(kinds: list[Any]) -> _Check:
    checks = [_checker(kind) for kind in kinds]
    by_type: dict[type, _Check] = {}
    for kind, check in zip(kinds, checks, strict=True):
        plain, _ = unwrapped(kind)
        for json_type in _JSON_TYPES.get(get_origin(plain) or plain, ()):
            by_type.setdefault(json_type, check)

    def check_one(value: Any, problems: _Problems) -> Any:
        if value is None:
            return None
        by_value = by_type.get(type(value))
        why = []
        for check_of_kind in checks if by_value is None else (by_value, *checks):
            try:
                return check_of_kind(value, problems)
            except _Wrong as error:
                why.append(error.complaint.partition(", not ")[2])
        raise _wrong(value, " or ".join(dict.fromkeys(why)))

    return check_one


def _named_from_outside(problems: _Problems, since: int, name: Any) -> int:
    """Prefix the problems of a part with the part's own name; return how many there are in all."""
    at = f"[{name}]" if isinstance(name, int) else f".{encodable(name)[:40]}"
    problems[since:] = [(at + where, complaint) for where, complaint in problems[since:]]
    return len(problems)


def _entries(check: _Check) -> _Check:
    def check_all(value: Any, problems: _Problems) -> list[Any]:
        if not isinstance(value, list) or len(value) > MOST_ENTRIES:
            raise _wrong(value, "a list")
        good_entries, reported = [], len(problems)
        for at, item in enumerate(value):
            try:
                good_entries.append(check(item, problems))
            except _NotKept as error:
                problems += error.problems
            if len(problems) > reported:
                reported = _named_from_outside(problems, reported, at)
        return good_entries

    return check_all


def _dictionary(check: _Check) -> _Check:
    def check_all(value: Any, problems: _Problems) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
            raise _wrong(value, "an object")
        good_entries, reported = {}, len(problems)
        for name, item in value.items():
            try:
                good_entries[name if name.isascii() else encodable(name)] = check(item, problems)
            except _NotKept as error:
                problems += error.problems
            if len(problems) > reported:
                reported = _named_from_outside(problems, reported, name)
        return good_entries

    return check_all


def _object(kind: Any, only: tuple[str, ...] | None = None) -> _Check:
    """Return the check of a TypedDict, or of some of its fields."""
    hints = _hints(kind)
    hints = {name: hint for name, hint in hints.items() if only is None or name in only}
    checks = {name: _checker(hint) for name, hint in hints.items()}
    keys = {name for name, hint in hints.items() if Key in unwrapped(hint)[1]}
    required = frozenset(kind.__required_keys__) & hints.keys()
    unknown_allowed = {name for name in required if _takes_null(hints[name])}

    def check(value: Any, problems: _Problems) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
            raise _wrong(value, "an object")
        good_fields: dict[str, Any] = {}
        reported, whole = len(problems), True
        for name, item in value.items():
            declared = checks.get(name)
            if declared is None and only is not None:
                continue
            key = name if declared is not None else encodable(name)
            if item is None:  # unknown, as any fact may be
                if name not in required or name in unknown_allowed:
                    good_fields[key] = None
                continue
            try:
                good_fields[key] = (declared or _any)(item, problems)
            except _NotKept as error:
                problems += error.problems
                whole = whole and name not in keys and name not in required
            if len(problems) > reported:
                reported = _named_from_outside(problems, reported, name)
        if not whole:
            raise _LeftOut
        if required - good_fields.keys():
            raise _Wrong("is missing", f".{min(required - good_fields.keys())}")
        return good_fields

    return check


def _takes_null(hint: Any) -> bool:
    kind, _ = unwrapped(hint)
    return NoneType in get_args(kind)


def _whole(check: _Check, check_apart: _Check, apart: tuple[str, ...]) -> _Check:
    def check_whole(value: Any, problems: _Problems) -> Any:
        inside: _Problems = []
        try:
            checked_value = check(value, inside)
        except _LeftOut:
            checked_value = None
        wrong = [problem for problem in inside if problem[0].partition(".")[2].partition(".")[0] not in apart]
        if not wrong and checked_value is not None:
            problems += inside
            return checked_value
        problems += wrong[:1]
        partly_checked = check_apart(value, problems) if isinstance(value, dict) else None
        if not partly_checked:
            raise _LeftOut
        return partly_checked

    return check_whole


def _any(value: Any, problems: _Problems, depth: int = 0) -> Any:
    """Return a value that is not declared: plain JSON."""
    if isinstance(value, str):
        return _text(value, problems)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        if not -MOST_NS <= value <= MOST_NS:
            raise _wrong(value, "a number of common size")
        return value
    if depth > DEEPEST:
        raise _Wrong("is nested too deeply")
    if isinstance(value, dict):
        return {encodable(name): _any(item, problems, depth + 1) for name, item in value.items()}
    return [_any(item, problems, depth + 1) for item in value]


def _wrong(value: Any, why: str) -> _Wrong:
    return _Wrong(f"is {_shown(value)}, not {why}")


def _shown(value: Any) -> str:
    """Return a value in a few characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not -MOST_NS <= value <= MOST_NS:
        return "a huge number"
    if isinstance(value, str):
        value = value if len(value) <= 40 else value[:39] + "…"
        return " ".join(encodable(repr(value)).split())
    return {True: "true", False: "false", None: "null"}.get(value, str(value))


# --- consistency between fields -------------------------------------------------------------------


def _check_times(facts: Facts, problems: _Problems) -> None:
    start, end, heartbeat = (facts.get("started_ns"), facts.get("ended_ns"), facts.get("heartbeat_ns"))
    if start is None:
        return
    if end is not None and not 0 <= end - start <= MOST_LENGTH_NS:
        problems.append(("ended_ns", f"is {(end - start) / 1e9:.0f} s after the start"))
        facts.pop("ended_ns")
    if heartbeat is not None and heartbeat - start > MOST_LENGTH_NS:
        problems.append(("heartbeat_ns", f"is {(heartbeat - start) / 1e9:.0f} s after the start"))
        facts.pop("heartbeat_ns")


def _check_account(facts: Facts, problems: _Problems) -> None:
    account = facts.get("account")
    if account is not None and not adds_up(account):
        problems.append(("account", "does not sum to the wall time"))
        facts.pop("account")


def adds_up(account: AccountFacts) -> bool:
    """Return whether the parts of an account sum to the wall time, none longer than it."""
    wall, parts = account["wall_s"], account["time_s"]
    most = wall * (1 + ROUNDED) + ROUNDED_S
    return (
        all(0 <= value <= most for name, value in parts.items() if name != "other")
        and abs(math.fsum(parts.values()) - wall) <= most - wall
    )


def _check_gpus(facts: Facts, problems: _Problems) -> None:
    by_index: dict[int, Gpu] = {}
    for at, gpu in enumerate(facts.get("gpus") or ()):
        index = gpu["index"]
        if by_index.setdefault(index, gpu) is not gpu:
            problems.append((f"gpus[{at}].index", f"is {index}, as that of another one"))
    if facts.get("gpus") is not None:
        facts["gpus"] = list(by_index.values())
