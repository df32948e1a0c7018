"""The facts of a manifest: every field's type, range and meaning, declared once and checked on reading.

A field that is not as declared is left out and reported; the rest stays. Two kinds of values go as a
whole, because they can be recomputed from the rows or mean nothing in part: those marked `Whole`,
and objects in which a required field is wrong. Fields that are not declared here (a newer version's)
are left out.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
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
MOST_ENTRIES = 1 << 17  # of a list; or characters of a text
# Parts of an account may exceed the whole by this much: they were rounded, or overlapped a little.
ROUNDED, ROUNDED_S = 0.005, 0.001
# A share measured over unequal times may exceed 100 %.
MOST_PCT = 110.0


class Within:
    """A range of numbers, both ends included."""

    def __init__(self, least: float, most: float):
        self.least, self.most = least, most

    def __str__(self) -> str:
        if self.most < MOST_COUNT:
            return f" from {self.least:.10g} to {self.most:.10g}"
        return ", 0 or more" if self.least == 0 else ""


class Exactly:
    """The length of a list."""

    def __init__(self, length: int):
        self.length = length


class _Mark:
    pass


# Any error inside leaves out the object as a whole.
Whole = _Mark()
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
# The least and the most; null where it has no upper end.
Bounds = Annotated[list[Number | None], Exactly(2)]


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
    collectives: str


class Model(TypedDict, total=False):
    """The model that is trained."""

    name: str
    parameters: Count
    thresholds: dict[str, Count]  # class of a compiled metric -> those it compares each value with, one by one
    frozen_share: Share | None  # of its parameters, but for embeddings', in layers before those that train
    unrolled: list[str]  # classes of recurrent layers whose time steps are unrolled into the graph
    looped: dict[str, str]  # function of the program that the model calls -> the loop of operations in it, as "map_fn"


class Replica(TypedDict, total=False):
    """A device of this process in a distribution."""

    device: str  # as the framework names it
    gpu: GpuIndex
    replica: Count


class OwnCallback(TypedDict, total=False):
    """A class of the user's callbacks: how often they run, and the argument that sets it.

    `library` is the installed package that it comes from, whose code is nobody's to edit; `places` are the lines where
    the program defines its hooks.
    """

    every: dict[str, Count]
    names: dict[str, str]
    monitor: str
    library: str
    places: dict[str, str]


class Dispatch(TypedDict, total=False):
    """The execution of a loop's step, from samples of the training thread."""

    samples: Count
    eager: Count
    compiled: Count
    on_core: Share  # of the thread's time in steps, without that in which it waited for a core
    predict_set_up: Count
    own: Count  # in Python of the program's own, of them ...
    at_place: Count  # ... in the line `own_at`
    own_at: str
    function: str
    operations: Count  # of a usual step
    exchanges: Count  # between ranks, of a usual step
    between: Count  # samples between the steps
    between_predict: Count
    between_predict_set_up: Count
    between_input: Count  # in the iterator of a dataset
    between_reads: Count  # of values that JAX computes
    between_joining: Count  # of the outputs of a validation's batches
    between_function: str  # of the program, in which most of them were ...
    between_in_function: Count  # ... so many
    copied_at: str  # line of the program that changes most of JAX's arrays by a copy, ...
    in_copied: Count  # ... and samples in all such lines
    called: str  # in steps, of the program, does not train: that in which most samples were ...
    in_called: Count  # ... so many


class PythonInSteps(TypedDict, total=False):
    """Calls of the training thread within the steps that do not train, from samples of its stack."""

    samples: Count
    on_core: Share  # of the thread's time, without that in which it waited for a core
    aside: Share  # of the time in calls that are neither the framework's nor the input's
    at: str  # the line of the program in which most of that passes, ...
    calls: str  # ... what it calls there, ...
    learned: bool  # ... whether a step learns from its value, as from a part of the loss, ...
    at_line: Share  # ... and its share of that
    parts: dict[str, Share]  # of PyTorch's step on a CPU, such as "backward" -> its share of the time
    keeps_at: str  # a line of the program that goes backward and keeps the graph (retain_graph=True), ...
    kept: Share  # ... and its share
    fetches: Share  # of the time in fetches of batches, ...
    fetches_at: str  # ... the line of the program of most of them, ...
    fetches_from: str  # ... and what delivers them, such as "a DataLoader", or the program's generator
    through: str  # what a compiled step calls it through, such as tf.numpy_function
    beside: Share  # of the samples waited for Python's lock while another thread ran `at`; `aside`: training idled
    of_batch: bool | None  # whether the step gives it the batch alone, nothing that the model computes; null = unknown


class Exchanges(TypedDict):
    """Exchanges of gradients among the ranks of a job, as PyTorch's DistributedDataParallel counts and times some."""

    count: Count  # or more; a call of the module that is not followed by a backward pass counts as well
    updates: Count  # of the weights meanwhile, or fewer
    exposed_ms: Number  # of the shortest seen: its time that the backward pass does not hide


class LongCall(TypedDict, total=False):
    """A call that took ten times as long as the others, or longer."""

    call: Required[Count]  # its number, from 1
    ms: Required[Number]
    at: Count  # the index that it was asked for


class InputCall(TypedDict, total=False):
    """A Python function that makes the input; its times are means per call, of its thread.

    If few calls take ten times as long as the others, these are left out of the means, and listed.
    """

    name: Required[str]
    # Of a DataLoader, beside its dataset; `wrapper`: the program's own around it; `loader`: torch's own.
    part: Literal["collate_fn", "sampler", "batch_sampler", "wrapper", "loader", "epoch_end"]  # the last: a PyDataset's
    calls: Count  # absent where it is sampled alone
    timed: Count
    wall_ms: Number
    cpu_ms: Number
    queued_ms: Number  # of the duration: ready to run, and no core was free
    samples: Count  # of the stack inside it, of which ...
    line: str  # ... most were in this line of the program ...
    in_line: Count  # ... so many
    slow: str  # why most lines are, by their source: lock, draw, rows, grow; model: they call one; absent: not known
    called: str  # by most lines: a library's function ("pandas.read_csv") or, of those in C, the calls as written
    library: str  # that a line of the program has called, in most of them ...
    in_library: Count  # ... so many
    long_ms: Number  # of all long calls together
    long: list[LongCall]  # the longest of them


class InputFile(TypedDict, total=False):
    """An array of an HDF5 file that the input's object has as an attribute."""

    name: Required[str]  # "self.x"
    chunk_rows: Count  # that are decompressed together; absent where it is stored in one piece
    compression: str
    bytes: Count  # of all its values, decompressed


class InputArray(TypedDict, total=False):
    """An array given to `fit`, or one of the first batch; its values are those of its first rows.

    `integers`: all of them are whole numbers. `type`: numpy, memmap (NumPy's: on disk until its
    values are needed), torch, tensorflow.
    """

    dtype: Required[str]
    type: str
    rank: Count
    rows: Count
    bytes: Count
    min: Signed
    max: Signed
    sum: Signed
    integers: bool


class InputPadding(TypedDict):
    """Padding of rows of whole numbers in the first batches, up to one length, with a value rare elsewhere."""

    rows: Count  # that were looked at
    share: Share  # of their positions
    beyond: Share  # of all positions, those that no row of the same array reaches


class InputMap(TypedDict, total=False):
    """A stage of a tf.data pipeline that calls a function, named as in the `pipeline` table."""

    name: Required[str]
    which: Required[Literal["train", "validation"]]
    random: Required[bool]  # draws random numbers, others in each call
    python: Required[bool]  # calls Python functions
    shuffled: bool  # a shuffle takes in its results, which no cache keeps


class InputDrop(TypedDict, total=False):
    """A stage of a tf.data pipeline that drops elements which others have made."""

    stage: Required[Literal["skip", "shard", "take"]]  # take: behind a cache, which is never full then
    which: Required[Literal["train", "validation"]]
    count: Required[Count]  # elements skipped or taken; of shard: one in so many stays
    samples: Required[Count]  # in an element
    behind: Required[str]  # the first stage that makes them, as in the `pipeline` table
    exact: Required[bool]  # before that stage it would drop the same


class Fit(TypedDict, total=False):
    """The parameters of the training, and its input."""

    loop: str
    trainer: Literal["lightning", "transformers"]  # whose callbacks report the steps
    timing: str
    epochs: Count
    first_epoch: Count  # counted from 0; more where a training is resumed
    first_iteration: Count  # batches that the optimizer was given before the first epoch begins
    steps_per_epoch: Count
    batch_size: Count
    steps_per_execution: Annotated[int, Within(1, MOST_COUNT)]
    gradient_accumulation_steps: Count
    jit_compile: bool
    run_eagerly: bool
    debugging: list[str]  # switches for debugging that were on in at least half of the looks, as the program sets them
    mixed_precision: str | bool
    optimizer: str
    strategy: str
    replicas: list[Replica]
    input_kind: str
    input_class: str
    input_collate: str
    input_workers: Count
    input_processes: bool
    input_persistent_workers: bool
    input_pin_memory: bool
    input_iterable: bool
    input_sharing: str | None  # of the program's own iterable dataset among workers: none, strided (islice, %)
    input_shards: Count  # of an iterable dataset whose library gives each worker process shards of its own
    input_autotune: bool
    input_batches: Count  # of a pass over it, however many an epoch takes
    input_one_iterator: bool  # for all epochs: fit was given their steps, and the number of its batches is not known
    # Of each tensor of a batch its sizes; [smallest, largest] of one that varied.
    input_dims: list[list[Count | list[Count] | None] | None]
    input_beside: list[str]
    input_ready_pct: Percent
    input_handover_ms: Number
    input_maps: list[InputMap]
    input_drops: list[InputDrop]
    input_batch_size: Count  # as its pipeline was written, for samples of one shape
    input_set_batches: Count  # of one pass over what the pipeline repeats
    input_set_samples: Count
    input_shuffles: bool  # what stages have made, more than names of files
    input_shuffle_bytes: Count  # of its shuffle buffers when full, if elements have one size
    input_calls: list[InputCall]
    input_files: list[InputFile]
    input_repeats: bool  # what its dataset made was the same when it was asked for again; absent: not seen
    input_reorders: bool  # a PyDataset has work of its own at the end of each epoch, such as shuffling
    input_first: list[InputArray]  # of the first batch, or the arrays given to `fit`
    input_second: list[InputArray]
    input_padding: InputPadding
    step_threads: Count  # that a step may use on the CPU
    validation_kind: str
    validation_workers: Count
    validation_split: Share
    validation_batch_size: Count
    validation_set_batches: Count  # of one pass over what its pipeline repeats
    validation_set_samples: Count
    variables: dict[str, str]
    callbacks: dict[str, OwnCallback]
    dispatch: Dispatch
    python_in_steps: PythonInSteps
    exchanges: Exchanges


class PeakFacts(TypedDict, total=False):
    """The most a GPU does in the precision that the model computes in."""

    tflops: Required[Number]  # dense
    precision: Required[str]  # fp16, bf16, tf32 or fp32
    source: str  # address of the data sheet
    derived: str  # how it was computed, where it is on no data sheet


class WorkFacts(TypedDict, total=False):
    """The model's work."""

    # Of training, forward and backward, two a multiply-add; matrix products and convolutions.
    flops_per_sample: Required[Number]
    source: Required[Literal["counted", "given"]]


class Throughput(TypedDict, total=False):
    """Samples trained, and the time of training: steps and waits, without compiling."""

    samples: Required[Count]
    training_s: Required[Number]


class Gpu(TypedDict, total=False):
    """A GPU of this process."""

    index: Required[GpuIndex]
    nvml_index: GpuIndex
    uuid: str
    name: str
    label: str
    used_by_framework: bool
    memory_total_bytes: Annotated[int, Within(0, 2**60)]
    unified_memory: bool  # it has none of its own: the machine's is not counted as its
    compute_capability: str
    pci_bus_id: str
    mig: bool
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

    name: Required[str]
    job: Required[str]
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


class OutOfMemoryFacts(TypedDict, total=False):
    """The error with which a training ran out of memory, and what was known then."""

    error: Required[str]
    message: str
    where: str
    gpu: GpuIndex
    step: Count
    batch_size: Count
    shapes: list[str]
    asked_bytes: Annotated[int, Within(0, MOST_NS)]
    free_bytes: Annotated[int, Within(0, MOST_NS)]
    reserved_bytes: Annotated[int, Within(0, MOST_NS)]
    stacks: str  # a file beside the manifest: who held the memory
    time_ns: Time


class Retraced(TypedDict):
    """The `tf.function` with the most traces, or what one line of a JAX program had compiled most often.

    On PyTorch what was new most often where torch.compile compiled again ("self.n"), and the line that uses it.
    """

    function: str
    traces: Count
    same_tensors: bool  # whether the last traces are of tensors of the same types and shapes
    line: NotRequired[str]  # on JAX, of the program; on PyTorch "train.py:7", or ""
    new_function: NotRequired[bool]  # on JAX: mostly it was another one than the time before
    seconds: NotRequired[Number]  # on JAX: of all of these together


class MemoryFacts(TypedDict, total=False):
    """Memory that grew, and memory that ran out."""

    models_fitted: Count  # in this process, if several
    models_alive: Count  # of these, still in memory
    functions: Count
    functions_per_step: Number
    functions_made_per_step: Number  # objects, of which each has traces of its own
    retraced: Retraced
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
    cuda_version: str


class GpuCheck(TypedDict, total=False):
    """Why the training uses none of the GPUs, as seen on the spot."""

    reason: Required[str]
    cure: str
    code: str


class Unavailable(TypedDict, total=False):
    """A source that could not be measured, and the remedy."""

    source: Required[str]
    reason: Required[str]
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

    window: Required[Count]
    first_step: Required[Count]
    stop_step: Required[Count]
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


class Standstill(TypedDict, total=False):
    """A time without a step, where steps were due."""

    start_ns: Required[Time]  # when the training thread was last seen to go on
    end_ns: Time  # when it went on; absent where it has not
    seconds: Required[Number]  # without times in which the process was stopped
    step: Required[Count]  # steps before it
    validation: bool  # the steps of a validation stopped coming
    limit_s: Number  # after how long it counts
    step_ms: Number  # of the usual step
    # Who waits: the training thread, a thread that makes its batches, or all of them for Python's lock.
    thread: Required[Literal["training", "input", "lock"]]
    place: str  # the line of the program, "" where none is on the stack
    calls: str  # the function of a library that it calls
    collective: bool  # it waits for other ranks
    gpu_active_pct: Percent
    workers: dict[str, Count]  # worker processes: alive, stopped, dead
    first_rank: Count  # of a job: the rank that stopped first
    stacks: str  # a file beside the manifest: all threads


class StuckFacts(TypedDict, total=False):
    """Times without a step, and where the training is now."""

    seconds: Required[Number]  # of all of them
    times: Required[Count]
    standstills: Required[list[Standstill]]  # the first ones and the newest
    still: Required[bool]  # no step has come since the last one
    steps: Count
    doing: str  # for which steps have to wait: compiling, checkpoint, validation, computing


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
    predict_set_up_s: Number
    other_at: str  # the function of the program in which most of "other code" passes, at its longest line, and its time
    other_at_s: Number
    inputs: Count  # different data that the fits were given; absent where that is not known


class AdviceFacts(TypedDict, total=False):
    """The remedy for a finding."""

    text: Required[str]
    code: Required[str]  # to paste; "" without
    before: str  # what the code replaces; "" where that is not known
    question: bool  # a condition was not observed: the code helps if the answer is yes
    changes: str  # what else the code changes: order, weights, a metric; "" = nothing
    untried: str  # why `gpu-util try` cannot measure it; "" or absent = it can, where it knows the code


class TriedFacts(TypedDict):
    """The outcome of `gpu-util try` for a finding: the advice as it was tried, in turns with the program as it is."""

    text: str  # in a sentence
    code: str  # what was changed
    ratio: Number  # times faster
    low: Number  # of its interval of 95 %
    high: Number
    resolved: bool  # the interval excludes no change
    pairs: Count


class Claim(TypedDict, total=False):
    """A finding about a whole run."""

    id: Required[str]  # unique within its run or session
    cause: Required[str]  # a stable id, e.g. input_bound; `gpu-util report --rules` lists all
    title: Required[str]  # for people; may be worded differently in any version
    lost_s: Required[Number | None]  # seconds that it cost; no second is counted twice within a run
    saves_s: Number | None  # seconds that following the advice saves, at most
    # The least and the most seconds that following the advice saves; of a question, if the answer is yes. The most is
    # null where nothing tells how much the steps can shrink.
    saves_range_s: Bounds | None
    tried: TriedFacts  # in place of the promise; absent where nothing was tried
    # Duration of the script with several fits that it is about; absent where it is about this recording alone.
    of_s: Number
    severity: Required[Share | None]  # share of its time that was lost
    confidence: Required[Literal["measured", "estimated"]]
    evidence: Required[dict[str, Value]]  # what was observed; units are the ends of the names
    threshold: Required[dict[str, Signed | None]]  # the limits that were crossed, by the name of the evidence
    advice: Required[AdviceFacts]
    gpus: Required[list[GpuIndex]]
    ranks: Required[list[Count]]


class Piece(TypedDict, total=False):
    """A range of steps and of time, half-open."""

    start_step: Required[Count]
    end_step: Required[Count]  # exclusive
    start_ns: Required[Time]  # since the epoch
    end_ns: Required[Time]


class Span(Claim, Piece, total=False):
    """A finding about a range of steps."""

    pieces: list[Piece]  # the times in it in which the loss lies; absent: all of it


class Silent(TypedDict, total=False):
    """A cause that could not be judged."""

    cause: Required[str]
    reason: Required[str]


class GpuEnergy(TypedDict, total=False):
    """The energy of a GPU over a run, and what it was computed from."""

    index: Required[GpuIndex]
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
    limit_bytes: Required[Number | None]
    limited_by: Required[str | None]  # container, ulimit -v or machine


class GpuMemory(TypedDict, total=False):
    """The memory of a GPU, as the framework's allocator has it."""

    index: Required[GpuIndex]
    live_peak_bytes: Required[Number]
    limit_bytes: Required[Number]
    bytes_per_sample: Required[Number | None]  # by a line through the batch sizes that ran
    room_for_batch: Required[Count | None]  # the largest batch that fits


class MemoryUse(TypedDict, total=False):
    """The memory of a run."""

    host: Required[HostMemory | None]
    gpus: Required[list[GpuMemory]]


class TracedSums(TypedDict):
    """Sums over traced steps of one GPU; ns by category."""

    steps: Count
    duration_ns: Time
    kernels: Count
    kernel_busy_ns: Time
    ns: dict[str, Time]


class TracedFacts(TypedDict):
    """The profiler windows of one GPU, or of the host alone (-1)."""

    gpu: Annotated[int, Within(-1, MOST_COUNT)]
    sums: TracedSums
    of_run: TracedSums  # the same with each window weighted by the steps that it represents


class DiagnosisFacts(TypedDict, total=False):
    """The recorder's findings, with its rules and the thresholds set; if damaged, those thresholds alone."""

    rules_version: int
    thresholds_set: dict[str, Signed]
    verdict: Required[str]
    gpu_active_pct: dict[str, Percent]
    memory: MemoryUse | None
    energy: Energy | None
    au: AcceleratorUseFacts | None
    traced: list[TracedFacts]
    findings: Required[list[Claim]]
    spans: Required[list[Span]]
    silent: list[Silent]


class SourceStage(TypedDict, total=False):
    """A stage of a trace's input pipeline."""

    name: Required[str]
    path: Required[str]
    self_ms: Number


class SourceCopies(TypedDict, total=False):
    """A trace's copies between host and GPU of one direction and kind of host memory."""

    direction: str
    memory: str  # "pageable", "pinned", "managed", "unknown"
    bytes: Number | None
    total_ns: Required[Number]


class SourceLateRank(TypedDict, total=False):
    """The rank that a trace's collectives wait for."""

    name: Required[str]
    waited_pct: Required[Percent]


class SourceOnce(TypedDict, total=False):
    """Costs in a trace that are paid once."""

    name: Required[str]
    longest_ns: Required[Time]
    idle_ns: Required[Time]  # of the GPUs, in all such costs


class SourceBlockingCall(TypedDict, total=False):
    """A call of the GPU's driver or runtime that holds the host for over a millisecond while the GPUs idle."""

    name: Required[str]
    op: Required[str]  # of the framework, which calls it; "" = not known
    count: Required[Count]
    each_ns: Required[Time]  # mean
    idle_ns: Required[Time]  # of the GPUs, in all of them


class SourceHostCalls(TypedDict, total=False):
    """Calls of the host's code by the compiled steps of a trace."""

    name: Required[str]
    total_ns: Required[Time]
    idle_ns: Required[Time]  # of the GPUs meanwhile
    idle_host_ns: Required[Time]  # the part of it in which nothing was launched


class SourceFacts(TypedDict, total=False):
    """The profiler's file that a recording was imported from: it times each of its few steps exactly."""

    tool: str
    format: str
    files: list[str]
    problems: list[str]
    steps_judged: Required[bool]  # its steps are certainly steps, not all GPU work as one
    idle_judged: Required[bool]  # its GPUs did enough work for their idle time to be judged
    host_traced: Required[bool]  # it shows what the host did
    tpu: Required[bool]  # a TPU did the work; what it did is not read
    fetches: Required[Count]  # of batches
    host_activity: Required[str]  # what the host did while the GPUs waited for it; "" = not known
    slowest_stage: Required[SourceStage | None]  # of the input pipeline, by work of its own
    trains: Required[bool]  # gradients or an optimizer are seen in it
    collectives: Required[str]  # the kind of most communication, all_to_all, gather or reduce; "" = none
    late_rank: Required[SourceLateRank | None]
    once: Required[SourceOnce | None]
    blocking_call: SourceBlockingCall | None
    host_calls: Required[SourceHostCalls | None]
    uploaded_ns: Required[Time]  # copies to a GPU before its first kernel, of a trace without steps
    gpus: Required[list[GpuIndex]]  # that computed, or else all with any activity; the rest is about them
    linked_kernels: Required[Count]  # kernels whose launch was seen
    short_kernels_pct: Required[Percent]  # kernels shorter than a launch, on the GPU with most of them
    copies: Required[list[SourceCopies]]
    compiled_by: str  # what compiled them: "torch" (torch.compile), "exported", "xla"; "" = nothing
    compiled_kernels_pct: Percent
    graph_kernels_pct: Percent  # kernels replayed from CUDA graphs


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
    arguments: str  # a stand-in for those of the command line
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
    gpus: list[Gpu]
    work: WorkFacts
    throughput: Throughput
    machine: Machine
    driver: Driver
    memory: MemoryFacts
    step_watch: Annotated[StuckFacts, Whole]
    gpu_check: list[GpuCheck]
    unavailable: list[Unavailable]
    overhead: Overhead
    windows: list[WindowFacts]
    look_refused: Annotated[Refused, Whole]
    source: SourceFacts
    # The diagnosis.
    account: Annotated[AccountFacts, Whole]
    process: Annotated[ProcessFacts, Whole]
    diagnosis: Annotated[DiagnosisFacts, Whole]


class ShownFacts(TypedDict):
    """The facts of the manifest that report and tab show as they are."""

    job_source: str | None  # "imported trace", where a profiler's files were
    fit_index: Count | None
    host: str | None
    rank: Count | None
    world_size: Count | None
    trial: str | None
    trial_config: str | None
    framework: Framework | None


class AsRecorded(ShownFacts):
    """The facts of the manifest that a report shows as they are."""

    job: str | None
    trial_of: str | None
    model: Model | None
    fit: Annotated[Fit | None, Unpromised]
    script: str | None
    arguments: str | None  # a stand-in for those of its command line
    work: WorkFacts | None


# --- the summary beside it ------------------------------------------------------------------------


class RunLoss(TypedDict):
    """Seconds that a cause cost a run, and that its advice saves at most; null where no finding knows them."""

    title: str
    lost_s: Number | None
    saves_s: Number | None


class Begins(TypedDict):
    """The place in the whole training at which a fit begins."""

    epoch: Count | None
    iteration: Count | None
    steps_per_epoch: Count | None


class RunSummary(TypedDict, total=False):
    """One run. A field that is not required is absent where it is not known; `read_summary` gives it as None."""

    host: str
    user: str
    rank: Count
    world_size: Required[Count]
    job: str
    job_source: str
    fit_index: Count
    fits: Required[Count]
    process: Required[list[Signed | None]]  # its id, and when it started
    scheduler: Scheduler
    script: str
    trial: str
    trial_of: str
    parameters: Count
    backend: str
    batch_size: Count
    begins: Required[Begins]
    status: Required[Status]
    start_ns: Required[Time]
    end_ns: Required[Time]
    wall_s: Required[Number]
    time_s: Required[dict[str, Number]]  # the host account
    steps: Required[Count]
    gpus: Required[dict[str, str]]  # index -> model, of the GPUs that the run held
    idle_gpus: Required[dict[str, str]]  # index -> cause, of those that did nothing
    active: Required[list[Share]]  # of each GPU that was sampled
    lost: Required[dict[str, RunLoss]]  # by cause
    advice: Required[dict[str, AdviceFacts]]  # by cause: its most costly finding's
    rules_version: Count
    judged: Required[bool]
    imported: Required[bool]  # made of a profiler's file


# --- checking -------------------------------------------------------------------------------------


class _Invalid(Exception):
    """A value that is left out; the message is its complaint, "" if a part of it is named already."""


def checked(manifest: Mapping[str, Any]) -> tuple[Facts, list[str]]:
    """Return the declared facts of a manifest, and one line for each part that was left out.

    Raises: ValueError where it is not a manifest at all.
    """
    problems: list[str] = []
    try:
        facts: Facts = _value(_kinds(Facts), manifest, "", problems)
    except _Invalid as error:
        raise ValueError("it names no format") from error
    stored = manifest.get("diagnosis")
    if "diagnosis" not in facts and isinstance(stored, dict):  # all but the user's settings can be recomputed
        settings = valid(DiagnosisFacts, "thresholds_set", stored.get("thresholds_set"))
        if settings:
            facts["diagnosis"] = {"thresholds_set": settings}  # type: ignore[typeddict-item]  # to be recomputed
    for check in (_check_times, _check_account, _check_gpus):
        check(facts, problems)
    return facts, problems


def valid(kind: Any, name: str, value: Any) -> Any:
    """Return a value for this field of a declared object, None where the field cannot hold it."""
    return dict(_valid_items([(name, _fields(kind)[name], value)], "", [])).get(name)


def as_declared(kind: Any, value: Any) -> Any:
    """Return an object that is a TypedDict as declared in every part; None for any other value."""
    problems: list[str] = []
    try:
        checked = _value(_kinds(kind), value, "", problems)
    except _Invalid:
        return None
    return None if problems else checked


def encodable(text: str) -> str:
    """Return text that can be written as UTF-8: JSON may hold lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unwrapped(kind: Any) -> tuple[Any, list[Any]]:
    """Return a type without its annotations, and the annotations."""
    marks: list[Any] = []
    while get_origin(kind) in (Annotated, Required, NotRequired):
        kind, *more = get_args(kind)
        marks += more
    return kind, marks


# Type of a declared field -> the types of its values in JSON, and their name.
_JSON_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    list: ((list,), "a list"),
    dict: ((dict,), "an object"),
    NoneType: ((NoneType,), ""),
}


class _Kind(NamedTuple):
    """Values that a field takes.

    Attributes:
        name: of the kind, in complaints; "" = null.
        within: range of numbers.
        words: all values, where they are listed.
        items: kinds of the values of a list or dictionary.
        fields: the TypedDict of an object.
        whole: any error inside leaves it out.
    """

    name: str
    within: Within
    words: tuple[Any, ...]
    items: "_Kinds"
    fields: Any
    whole: bool

    def takes(self, value: Any) -> bool:
        """Return True if a value lies within the declared range, words or length."""
        if isinstance(value, (int, float)):  # NaN is in no range
            return self.within.least <= value <= self.within.most
        if value is None:
            return True
        return len(value) <= MOST_ENTRIES and (not self.words or value in self.words)


# Type of a value in JSON -> what it may be.
_Kinds = dict[type, _Kind]
_ANY_NUMBER = Within(-MOST_COUNT, MOST_COUNT)


@cache
def _kinds(declared: Any) -> _Kinds:
    """Return the types of JSON values that a declared type allows, each with its limits.

    Args:
        declared: a type, with its annotations: a number, text, Literal, list, dict, TypedDict or union of such.
    """
    kind, marks = unwrapped(declared)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {json_type: each for member in arguments for json_type, each in _kinds(member).items()}
    words = arguments if origin is Literal else ()
    if is_typeddict(kind):
        base: Any = dict
    else:
        base = str if words else origin or kind
    json_types, name = _JSON_TYPES[base]
    within = next((mark for mark in marks if isinstance(mark, Within)), _ANY_NUMBER)
    if words:  # a Literal: its words are the limit
        name = f"one of {', '.join(words)}"
    elif base in (int, float):  # a number: its range is
        name += str(within)
    entry = _Kind(
        name=name,
        within=within,
        words=words,
        items=_kinds(arguments[-1]) if origin in (list, dict) else {},
        fields=kind if is_typeddict(kind) else None,
        whole=Whole in marks,
    )
    return dict.fromkeys(json_types, entry)


@cache
def _fields(kind: Any) -> dict[str, _Kinds]:
    """Return the kinds of each field of a TypedDict; one that is not required may be null, too."""
    hints = get_type_hints(kind, include_extras=True)
    required, null = kind.__required_keys__, NoneType
    return {name: _kinds(hint if name in required else hint | null) for name, hint in hints.items()}


def _value(kinds: _Kinds, value: Any, at: str, problems: list[str]) -> Any:
    """Return a list or an object without the parts that are not as declared. Raises: _Invalid for any other value.

    Args:
        at: its place in the manifest.
        problems: a line for each part that is left out is appended.
    """
    kind = kinds.get(type(value))
    if kind is None or not isinstance(value, (dict, list)) or not kind.takes(value):
        names = " or ".join(dict.fromkeys(each.name for each in kinds.values() if each.name))
        raise _Invalid(f"is {_shown(value)}, not {names}")
    if isinstance(value, list):
        entries = ((number, kind.items, item) for number, item in enumerate(value))
        return [item for _, item in _valid_items(entries, at, problems)]
    reported = len(problems)
    if kind.fields is None:
        named = ((sys.intern(encodable(name)), kind.items, item) for name, item in value.items())
        return dict(_valid_items(named, at, problems))
    good_fields = _object(kind.fields, value, at, problems)
    if kind.whole and len(problems) > reported:
        del problems[reported + 1 :]
        raise _Invalid
    return good_fields


def _object(kind: Any, value: dict[str, Any], at: str, problems: list[str]) -> dict[str, Any]:
    """Return the fields of an object that are as declared. Raises: _Invalid where a required one is not.

    Args:
        kind: a TypedDict.
        at: its place in the manifest, for `problems`.
        problems: a line for each part that is left out is appended.
    """
    fields = _fields(kind)
    items = ((sys.intern(name), fields[name], item) for name, item in value.items() if name in fields)
    good_fields = dict(_valid_items(items, at, problems))
    missing = kind.__required_keys__ - good_fields.keys()
    if missing:
        raise _Invalid("" if missing & value.keys() else f"has no {min(missing)}")
    return good_fields


def _valid_items(
    items: Iterable[tuple[str | int, _Kinds, Any]], at: str, problems: list[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of each item that is as declared; the others are named in `problems`.

    Equal texts are held once.

    Args:
        items: (key or index, what its value may be, its value).
        at: their place in the manifest.
    """
    for key, kinds, item in items:
        kind = kinds.get(type(item))
        if type(item) not in (dict, list) and kind is not None and kind.takes(item):  # nearly all of them
            yield key, sys.intern(encodable(item)) if type(item) is str else item
            continue
        place = f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key[:40]}"
        try:
            valid_item = _value(kinds, item, place, problems)
        except _Invalid as error:
            if str(error):
                problems.append(f"{place.lstrip('.')} {error}")
        else:
            yield key, valid_item


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
    return json.dumps(value)


# --- consistency between fields -------------------------------------------------------------------


def _check_times(facts: Facts, problems: list[str]) -> None:
    """Drop `ended_ns` and `heartbeat_ns` where they lie impossibly far from the start, each with a problem."""
    start, end, heartbeat = (facts.get("started_ns"), facts.get("ended_ns"), facts.get("heartbeat_ns"))
    if start is None:
        return
    if end is not None and not 0 <= end - start <= MOST_LENGTH_NS:
        problems.append(f"ended_ns is {(end - start) / 1e9:.0f} s after the start")
        facts.pop("ended_ns")
    if heartbeat is not None and heartbeat - start > MOST_LENGTH_NS:
        problems.append(f"heartbeat_ns is {(heartbeat - start) / 1e9:.0f} s after the start")
        facts.pop("heartbeat_ns")


def _check_account(facts: Facts, problems: list[str]) -> None:
    """Drop an account that does not sum to the wall time, with a problem."""
    account = facts.get("account")
    if account is not None and not adds_up(account):
        problems.append("account does not sum to the wall time")
        facts.pop("account")


def with_known_parts(account: AccountFacts) -> AccountFacts:
    """Return an account, without its parts where damaged rows make them longer than the recording."""
    return account if adds_up(account) else {"wall_s": account["wall_s"], "time_s": {}}


def adds_up(account: AccountFacts) -> bool:
    """Return whether the parts of an account (s) sum to the wall time, none below 0 or longer than it, within rounding.

    The remainder "other" alone may be negative.
    """
    wall, parts = account["wall_s"], account["time_s"]
    longest_s = wall * (1 + ROUNDED) + ROUNDED_S
    return (
        all(0 <= value <= longest_s for name, value in parts.items() if name != "other")
        and abs(math.fsum(parts.values()) - wall) <= longest_s - wall
    )


def _check_gpus(facts: Facts, problems: list[str]) -> None:
    """Keep the first of GPUs with one index; name the others in `problems`."""
    by_index: dict[int, Gpu] = {}
    for at, gpu in enumerate(facts.get("gpus") or ()):
        index = gpu["index"]
        if by_index.setdefault(index, gpu) is not gpu:
            problems.append(f"gpus[{at}].index is {index}, as that of another one")
    if facts.get("gpus") is not None:
        facts["gpus"] = list(by_index.values())
