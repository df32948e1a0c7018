"""The host's side of a trace: its framework, busiest ops and pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpu_util_callback.traces import limits
from gpu_util_callback.traces.breakdown import blocking_rows, launches
from gpu_util_callback.traces.intervals import EMPTY, Intervals, union
from gpu_util_callback.traces.kernels import op_name, replayed
from gpu_util_callback.traces.model import KERNELS, PS_PER_MS, PS_PER_NS, HostKind, Names, Process, Trace, groups
from gpu_util_callback.traces.steps import Steps

_ELEMENT = re.compile(r"\[\d+\]")
# Stages that wait for others and pass on what those made.
_PASSES_ON = re.compile(r"(Root|Prefetch|Model|Options|MaxIntraOpParallelism|PrivateThreadPool)(V\d+)?$")
# What Keras makes of arrays: the batches' places, shuffled, and the arrays, of which one map cuts a batch.
_OF_ARRAYS = re.compile(r"::Zip\[1\]::ForeverRepeat\[0\]::FromTensor$")
# A waiting op does no work: another thread does.
_WAITS = re.compile(
    r"block_until_ready|try_to_block|blockhostuntil|synchronize|await|\b(wait|join|acquire)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class HostOp:
    """One op of the framework on the host, over all threads."""

    name: str
    type: str | None  # "MatMul" of "model/dense/MatMul:MatMul"; None = unknown
    count: int
    total_ps: int
    max_ps: int


def sums(group: np.ndarray, duration: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the total and the longest duration of each group."""
    total, longest = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    np.add.at(total, group, duration)
    np.maximum.at(longest, group, duration)
    return total, longest


_BUSIEST_OPS = 100


def host_ops(process: Process, names: Names) -> list[HostOp]:
    """Return the ops that took most time on the host, busiest first, a hundred at most."""
    rows = np.flatnonzero(process.events.of(HostKind.OP))
    # Of each op: its name's number, and its duration, ps.
    of_name, took = process.events.name[rows], process.events.end_ps[rows] - process.events.start_ps[rows]
    count = np.bincount(of_name, minlength=len(names))
    total, longest = sums(of_name, took, len(names))
    busiest = np.argsort(-total, kind="stable")
    result = []
    for i in busiest[count[busiest] > 0][:_BUSIEST_OPS].tolist():
        name, kind = op_name(names[i])
        result.append(HostOp(name, kind or None, int(count[i]), int(total[i]), int(longest[i])))
    return result


@dataclass(frozen=True, slots=True)
class TracedStage:
    """One stage of a tf.data pipeline, all threads together."""

    stage: str  # "Map" of "Iterator::Root::Prefetch::Map"
    path: str
    count: int
    total_ps: int
    self_ps: int  # wall time at work while no stage that it pulls from was; 0 if it passes on only


def pipeline_stages(process: Process, names: Names) -> list[TracedStage]:
    """Return the stages of the input pipeline, the one with most work of its own first; [] without tf.data."""
    events = process.events
    is_stage = names.matching(lambda s: s.startswith("Iterator::"))
    rows = np.flatnonzero((events.kind == HostKind.PIPELINE) & is_stage[events.name])
    if not len(rows):
        return []
    # "FlatMap[3]::TFRecord" is the fourth element opened by FlatMap: all of them are one stage.
    unique, inverse = np.unique(events.name[rows], return_inverse=True)
    paths = [_ELEMENT.sub("", names[name]) for name in unique.tolist()]
    numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
    stage = np.array([numbers[path] for path in paths])[inverse]
    paths = list(numbers)
    spent = np.bincount(stage, events.duration_ps[rows])
    busiest = np.isin(stage, np.argsort(-spent, kind="stable")[: limits.MAX_STAGES])
    rows, stage = rows[busiest], stage[busiest]
    rows_of = {paths[number]: rows[mine] for number, mine in groups(stage) if not _hands_over(paths[number])}
    feeding: dict[str, list[np.ndarray]] = {}  # rows of the stages that a stage pulls from
    for path, mine in rows_of.items():
        feeding.setdefault(path.rpartition("::")[0], [rows[:0]]).append(mine)
    stages = []
    for path, mine in rows_of.items():
        name = path.rpartition("::")[2]
        # Time in which a stage that it pulls from was at work.
        pulled = events.times(np.concatenate(feeding.get(path, [rows[:0]])))
        self_ps = 0 if _PASSES_ON.match(name) else (events.times(mine) - pulled).total
        stages.append(TracedStage(name, path, len(mine), int(events.duration_ps[mine].sum()), self_ps))
    return sorted(stages, key=lambda s: -s.self_ps)


def _hands_over(path: str) -> bool:
    """Return whether a stage only waits for another pipeline, to pass its batches to one GPU.

    A strategy gives each GPU a separate pipeline that takes its part from the common one; it is
    written as a generator. One of Python's, `from_generator`, lies in a FlatMap.
    """
    within, _, name = path.rpartition("::")
    return name.startswith("Generator") and not within.rpartition("::")[2].startswith("FlatMap")


def culprit(process: Process, names: Names, idle: Intervals) -> str:
    """Return the host's activity during `idle`: the most specific name that covers half of it.

    Names nest (a call within a call within a loop); of those that cover enough, the one with the
    least time outside `idle` is the most specific. Waiting for another thread is not an answer. ""
    where nothing covers enough. `overlap`, `total`: ps of each name, within `idle` and in all.
    """
    events = process.events
    covered = idle.measure(events.start_ps, events.end_ps)
    rows = np.flatnonzero((covered > 0) & ~events.of(HostKind.STEP, HostKind.INPUT_WAIT))
    unique, inverse = np.unique(events.name[rows], return_inverse=True)
    overlap = np.bincount(inverse, weights=covered[rows])
    total = np.bincount(inverse, weights=events.duration_ps[rows])
    # A name whose overlap exceeds the idle time runs on several threads.
    enough = np.flatnonzero((overlap >= 0.5 * idle.total) & (overlap <= 1.05 * idle.total))
    working = [name for name in enough.tolist() if not _WAITS.search(names[int(unique[name])])]
    if not working:
        return ""
    return names[int(unique[min(working, key=lambda name: total[name] - overlap[name] * 0.5)])]


# Calls that start CUDA or HIP, or load code into a GPU: none of them belongs to a step.
_STARTS_UP = re.compile(
    r"^(cuInit|(cu|hip)(DevicePrimaryCtxRetain|CtxCreate|ModuleLoad|LibraryLoad)\w*|hipInit"
    r"|cu(da)?GetExportTable)"
)
_MAY_START_UP = re.compile(r"^(cuda|hip)(Free|SetDevice|Malloc|GetDevice\w*|DeviceGet\w*)$")
# The first of its name, this many times as long as the next longest, paid for what all others use.
_FIRST_TIMES = 10
_LEAST_ONCE_PS = 10 * PS_PER_MS


def one_time_costs(process: Process, names: Names, steps: Steps) -> np.ndarray:
    """Return the host's events (rows) that certainly were paid for once: calls that start up, and first ones of a name.

    Such a first call or op takes ten times as long as any later one of at least three. What starts up in
    most of the steps, as code that each of them loads anew, is not paid for once.
    """
    events = process.events
    took = events.duration_ps
    rows = np.flatnonzero(events.of(HostKind.CALL, HostKind.LAUNCH, HostKind.OP))
    long = rows[took[rows] >= _LEAST_ONCE_PS]
    rows = rows[np.isin(events.name[rows], np.unique(events.name[long]))]
    costs = [rows[:0]]
    for name, of_name in groups(events.name[rows]):
        mine = rows[of_name]
        long = mine[took[mine] >= _LEAST_ONCE_PS]
        # It starts a GPU up by its name; so may its only call; or its first call paid for all later ones.
        starts_up = _STARTS_UP.match(names[name]) and not _in_most_steps(steps, events.start_ps[long])
        alone = len(mine) == 1 and _MAY_START_UP.match(names[name])
        first = len(mine) > 3 and took[mine[0]] / _FIRST_TIMES >= took[mine[1:]].max()
        if starts_up:
            costs.append(long)
        elif first or alone:
            costs.append(long[long == mine[0]])
    return np.concatenate(costs)


def _in_most_steps(steps: Steps, at: np.ndarray) -> bool:
    """Return whether more than half of at least three steps contain one of the times."""
    inside = np.unique(np.searchsorted(steps.start_ps, at, "right"))
    return len(steps) >= 3 and 2 * len(inside) > len(steps)


def blocking_call(process: Process, names: Names, steps: Steps, idle: list[Intervals]) -> dict[str, object] | None:
    """Return the driver's or runtime's call that holds the host longest while the GPUs idle; None without any.

    Args:
        idle: when each GPU at work waited for the host.

    Returns: its `name`; `op`, the framework's operation that calls it ("" = none in the trace); `count`, its
        calls of over a millisecond within the steps; `each_ns`, their mean; `idle_ns`, the mean idle time of the
        GPUs in all of them.
    """
    events = process.events
    rows = blocking_rows(events)
    if not len(rows) or not idle or not len(steps):
        return None
    rows = rows[union(steps.start_ps, steps.end_ps).contains(events.start_ps[rows])]
    # How long the GPUs idled during each call, ps, mean over them.
    held = np.mean([gpu.measure(events.start_ps[rows], events.end_ps[rows]) for gpu in idle], axis=0)
    rows, held = rows[held > 0], held[held > 0]
    if not len(rows):
        return None
    of_name = np.bincount(events.name[rows], held)
    mine = events.name[rows] == np.argmax(of_name)
    longest = int(rows[mine][np.argmax(held[mine])])
    ops = events.around(longest)
    ops = ops[events.kind[ops] == HostKind.OP]
    return {
        "name": names[int(events.name[longest])],
        "op": names[int(events.name[ops[-1]])] if len(ops) else "",
        "count": int(mine.sum()),
        "each_ns": int(events.duration_ps[rows[mine]].mean()) // PS_PER_NS,
        "idle_ns": int(held[mine].sum()) // PS_PER_NS,
    }


# Host code that a compiled step calls. Operations of TensorFlow may also be of a function that the
# input pipeline runs.
_OF_TENSORFLOW = re.compile(r":(PrintV2|Print|(Eager)?PyFunc(Stateless)?)$")
_OF_JAX = re.compile(
    r"xla_(ffi_)?(partitioned_)?python_[cg]pu_callback|Xla(Ffi)?Python[CG]pu|CpuCallback::"
    r"|\b(debug|pure|io)_callback(_impl)?\b|^debug_print\b"
)


def host_calls(process: Process, names: Names) -> tuple[Intervals, str]:
    """Return when compiled steps ran code on the host, and the function with most of that time; "" = never."""
    events = process.events
    active = events.of(HostKind.OP, HostKind.FRAMEWORK, HostKind.PYTHON, HostKind.RANGE)
    jax = np.flatnonzero(active & names.matching(_OF_JAX.search)[events.name])
    ops = np.flatnonzero(active & names.matching(_OF_TENSORFLOW.search)[events.name])
    rows = np.concatenate((jax, ops[_ran_for_called_functions(process, ops)]))
    if not len(rows):
        return EMPTY, ""
    spent = np.bincount(events.name[rows], events.duration_ps[rows])
    return events.times(rows), names[int(np.argmax(spent))]


def _ran_for_called_functions(process: Process, ops: np.ndarray) -> np.ndarray:
    """Return a mask of the ops (rows of events) that an executor ran for a function that the program called.

    The executor works under the id of that call, and for the input pipeline under others.
    """
    events = process.events
    runs = np.flatnonzero((events.kind == HostKind.RUN) & (events.value != -1))
    calls = np.unique(events.value[runs[~process.of_pipeline(runs)]])
    executors = np.flatnonzero(events.of(HostKind.FRAMEWORK) & np.isin(events.value, calls))
    inside = np.zeros(len(ops), bool)
    works = dict(groups(events.thread[executors]))
    for thread, mine in groups(events.thread[ops]):
        rows = executors[works.get(thread, executors[:0])]
        inside[mine] = events.times(rows).contains(events.start_ps[ops[mine]])
    return inside


# What a compiler makes of a model: ranges of the host in which it runs, and kernels by their names. An
# exported graph was fixed before the program ran: by torch.export, TorchScript, TensorRT, ONNX Runtime.
_COMPILED_REGION = re.compile(
    r"^Torch-Compiled Region|Call CompiledFxGraph|^CompiledFunction|CUDAGraphNode|\b_?Xla(Launch|Run)(V2)?\b"
    r"|^(GpuExecutable|ThunkExecutor)::Execute"
)
_EXPORTED_REGION = re.compile(
    r"AOTInductor|aot_?inductor|AOTIModel|aoti_|ExportedProgram|nn\.Module: \w*GraphModule|<eval_with_key>"
    r"|TensorExpr|CudaFusionGroup|\bTRTEngine|tensorrt::execute_engine|^trt_|OrtModule|onnxruntime"
)
_COMPILED_KERNEL = re.compile(
    r"^(void )?triton_(poi|per|red|tem|for|mm|gemm|fused|unk|flex)_|^(loop_|input_|wrapped_)?\w*fusion(_\d+)*$"
    r"|^fused_[a-z]|tensorexpr"
)
# Kernels that a call of a compiled function launches at least; eager JAX calls one for each operation.
_KERNELS_A_CALL = 5
_HARDLY_COMPILED = 0.05  # of the kernels


def compiled(process: Process, names: Names, framework: str) -> tuple[str, float, float]:
    """Return what compiled the kernels of a process's GPUs at work.

    Returns: "torch" (torch.compile), "exported", "xla", or "" where the program started all of them one by one;
        of the kernels the share of compiled code, and the share replayed from CUDA graphs (0-1).
    """
    events = process.events
    by, region = "torch", names.matching(_COMPILED_REGION.search)
    if not region.any() and (of_exported := names.matching(_EXPORTED_REGION.search)).any():
        by, region = "exported", of_exported
    made = names.matching(_COMPILED_KERNEL.search)
    # Kernels in all, replayed from CUDA graphs, and compiled: launched in such a region, or so by their names.
    count = graphs = inside = 0
    for device in process.active_devices:
        rows = np.flatnonzero(device.events.of(*KERNELS))
        begun = launches(process, device)[0][rows]
        count += len(rows)
        graphs += int(replayed(process, device, names)[rows].sum())
        within = events.times(region[events.name]).contains(begun) | made[device.events.name[rows]]
        inside += int(within.sum())
    share = inside / max(1, count)
    if framework == "jax" and not share:  # no names: by how many kernels a call starts
        calls = np.count_nonzero((events.kind == HostKind.RUN) & ~process.of_pipeline(np.arange(len(events))))
        share = float(0 < calls * _KERNELS_A_CALL <= count)
    if by == "torch" and framework in ("jax", "tensorflow"):
        by = "xla"
    return by if share >= _HARDLY_COMPILED else "", share, graphs / max(1, count)


_JAX = re.compile(r"PjitFunction\(")
_TENSORFLOW = re.compile(r"ExecutorState::|IteratorGetNext|Iterator::")
_TORCH = re.compile(r"^aten::|at::native::")
# The function that Keras compiles, as TensorFlow names it.
_KERAS = re.compile(r"(multi|one)_step_on_(iterator|data)|__inference_train_function")
# Names of the backward pass and of optimizers, on the host or on the GPU.
_TRAINS = re.compile(
    r"autograd::engine|Backward\d|backward|bwd|Optimizer\.step|[dw]grad|gradient|transpose\(jvp"
    r"|multi_tensor_apply|Adam(?![a-z])|train_step|train_function|one_step_on_"
)
# Servers of language models: their code is not the user's to change, and has no training loop.
_SERVER = re.compile(r"(^|[^a-z])(vllm|sglang)(::|/|\.)|^execute_(new|context)_\d|\bsgl_kernel|^sgl::")
_LOADER = re.compile(r"_\w{0,40}(Single|Multi)Process\w{0,40}DataLoaderIter")


@dataclass(frozen=True, slots=True)
class Wording:
    """The framework for whose users advice is written.

    Attributes:
        framework: "torch", "jax", "tensorflow", or "" where the trace does not show it (Nsight), or is of a server.
        keras: True if `model.fit` ran the steps, as far as can be seen.
        arrays: True if it cut their batches from arrays.
        workers: True if PyTorch's DataLoader has worker processes; None = no such loader is seen.
        trains: True if gradients or an optimizer are seen.
    """

    framework: str
    keras: bool = False
    workers: bool | None = None
    trains: bool = False
    arrays: bool = False


def wording(trace: Trace) -> Wording:
    """Return what the names of a trace tell: its framework, whether it trains, and what loads its batches."""
    names = trace.names.strings

    def is_seen(sign: Callable[[str], object]) -> bool:
        return any(map(sign, names))

    trains = is_seen(_TRAINS.search)
    if not trains and is_seen(_SERVER.search):  # a training may borrow their kernels
        return Wording("")
    if is_seen(_JAX.match):  # first: it may take its input from tf.data
        return Wording("jax", trains=trains)
    if is_seen(_TENSORFLOW.match):
        keras = is_seen(_KERAS.search)
        return Wording("tensorflow", keras, trains=trains, arrays=keras and is_seen(_OF_ARRAYS.search))
    loaders = [loader[1] for name in names if "DataLoader" in name and (loader := _LOADER.search(name))]
    torch = trace.format == "kineto" or is_seen(_TORCH.search)
    return Wording("torch" if torch else "", False, "Multi" in loaders if loaders else None, trains)
