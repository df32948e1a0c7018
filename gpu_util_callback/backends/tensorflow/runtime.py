"""TensorFlow: its facts, GPUs, compilations and state, with or without Keras."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import tensorflow as tf

from gpu_util_callback.backends.base import ListedGpu, Runtime
from gpu_util_callback.backends.tensorflow.distribute import LocalFetch, is_distributed
from gpu_util_callback.cgroup import cpus_allowed
from gpu_util_callback.recording.manifest_facts import Retraced
from gpu_util_callback.steps.compilations import SEVERAL_TRACES, CompileClock
from gpu_util_callback.steps.dispatch import CalledBack


class TensorFlowRuntime(Runtime):
    """TensorFlow in this process."""

    name, version = "tensorflow", tf.__version__
    _graph: weakref.ref | None = None  # to the graph of a training that is built op by op

    def framework(self) -> dict[str, object]:
        return super().framework() | {
            "device": _device(),
            "cuda_build": bool(tf.test.is_built_with_cuda()),
            "cuda": _build("cuda_version"),
            "eager_by": "tf.config.run_functions_eagerly(True)" if tf.config.functions_run_eagerly() else None,
        }

    def step_threads(self) -> int | None:
        return tf.config.threading.get_intra_op_parallelism_threads() or cpus_allowed()  # 0 = all

    def debugging(self) -> list[str]:
        from tensorflow.python.data.ops import debug_mode
        from tensorflow.python.debug.lib import check_numerics_callback as checks

        # It is on in threads, and only they can tell: what they have traced since shows it.
        traces = _traces() if running() and checks._check_numerics_callback_create_counter.get_cell().value() else ()
        nodes = (node for trace in traces if _TRACE.fullmatch(trace.signature.name) for node in trace.node_def)
        is_on = any(node.op == "CheckNumericsV2" for node in nodes)
        switches = ["tf.data.experimental.enable_debug_mode()"] * debug_mode.DEBUG_MODE
        return super().debugging() + switches + ["tf.debugging.enable_check_numerics()"] * is_on

    def devices(self) -> list[ListedGpu] | None:
        gpus: list[ListedGpu] = []
        for index, device in enumerate(tf.config.get_visible_devices("GPU")):
            try:
                details = tf.config.experimental.get_device_details(device)
            except Exception:  # a plug-in device without details
                details = {}
            capability = details.get("compute_capability")
            # CUDA's number, which `tf.config.set_visible_devices` does not change.
            ordinal = device.name.rpartition(":")[2]  # "/physical_device:GPU:1"
            gpus.append(
                {
                    "index": index,
                    "name": details.get("device_name") or device.name,
                    "compute_capability": ".".join(map(str, capability)) if capability else None,
                    "cuda_ordinal": int(ordinal) if ordinal.isdigit() else None,
                }
            )
        return gpus or None

    def memory(self) -> dict[int, dict[str, float]]:
        if not running():
            return {}
        gpus = range(len(tf.config.list_logical_devices("GPU")))
        memory = [tf.config.experimental.get_memory_info(f"GPU:{index}") for index in gpus]
        names = {"allocator_used_bytes": "current", "allocator_peak_bytes": "peak"}
        return {index: {ours: float(memory[index][theirs]) for ours, theirs in names.items()} for index in gpus}

    def watch_graph(self) -> None:
        self._graph = None if tf.executing_eagerly() else weakref.ref(tf.compat.v1.get_default_graph())

    def counters(self) -> dict[str, int]:
        counts = {}
        if running():
            from tensorflow.python.eager import context

            counts["functions"] = len(context.context().list_function_names())
            counts["functions_made"] = _functions_made()
        graph = self._graph() if self._graph is not None else None
        if graph is not None:  # without eager execution, TensorFlow may never be initialised
            counts["graph_operations"] = int(graph.version)
        return counts

    def retraced(self) -> Retraced | None:
        """Return the program's function with the most traces, and whether the last ones are of the same tensors.

        None where none has several, or XLA compiles it for each new shape: tracing costs little beside that.
        """
        if not running():
            return None
        from tensorflow.python.eager import context

        # Function -> the numbers of its traces: the larger, the later.
        numbers_by_function: dict[str, list[int]] = {}
        for name in context.context().list_function_names():
            if trace := _TRACE.fullmatch(name):
                numbers_by_function.setdefault(trace[1], []).append(int(trace[2]))
        for function, numbers in sorted(numbers_by_function.items(), key=lambda item: -len(item[1])):
            if len(numbers) < SEVERAL_TRACES:  # nor has any of the others
                break
            last = sorted(numbers)[-SEVERAL_TRACES:]
            try:
                traces = [context.context().get_function_def(f"__inference_{function}_{number}") for number in last]
            except tf.errors.NotFoundError:  # the program let go of it just now
                continue
            if not any(_is_pipeline_trace(trace) for trace in traces):  # it is the program's own
                same_tensors = all(_tensors(trace) == _tensors(traces[0]) for trace in traces)
                # Not one that XLA compiles for each new shape.
                if same_tensors or not any(trace.attr["_XlaMustCompile"].b for trace in traces):
                    return {"function": function, "traces": len(numbers), "same_tensors": same_tensors}
        return None

    def called_back(self, code: CodeType) -> CalledBack | None:
        if not running():
            return None
        from gpu_util_callback.backends.tensorflow.written_stages import python_call

        return python_call(code, (trace for trace in _traces() if not trace.attr["_tf_data_function"].b))

    def local_fetch(self, iterator: object) -> Callable[[], int] | None:
        if not is_distributed(iterator):
            return None
        local = LocalFetch(iterator)
        return lambda: local.ended

    # TensorFlow's workers find each other by TF_CONFIG, which is read anyway: no `rendezvous`.

    def tf32(self) -> dict[str, bool]:
        enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
        return {"matmul": enabled, "conv": enabled}

    def compile_clock(self) -> CompileClock:
        return TensorFlowCompileClock()

    def processes(self) -> int:
        resolver = getattr(tf.distribute.get_strategy(), "cluster_resolver", None)
        return 1 if resolver is None else max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))


RUNTIME = TensorFlowRuntime()

# The name of a trace ends with a number of its own.
_TRACE = re.compile(r"__inference_(.+)_(\d+)")


def _traces() -> Iterator[Any]:
    """Yield the functions that TensorFlow has traced."""
    from tensorflow.python.eager import context

    return map(context.context().get_function_def, context.context().list_function_names())


def _is_pipeline_trace(trace: Any) -> bool:
    """Return whether a trace is of a stage of tf.data, or takes its batches from an iterator or a dataset."""
    datasets = any(argument.type == tf.variant.as_datatype_enum for argument in trace.signature.input_arg)
    return trace.attr["_tf_data_function"].b or datasets or any(node.op == "IteratorGetNext" for node in trace.node_def)


def _tensors(trace: Any) -> list[tuple[int, str]]:
    """Return the type (a number of TensorFlow's `DataType`) and the shapes, as text, of each tensor of a trace."""
    arguments = enumerate(trace.signature.input_arg)
    return [(of.type, str(trace.arg_attr[at].attr["_output_shapes"].list.shape)) for at, of in arguments]


def _functions_made() -> int:
    """Return how many `tf.function`s this process has made and called."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    return sum(int(polymorphic_function._tf_function_counter.get_cell(xla).value()) for xla in ("0", "1"))


def _device() -> str | None:
    """Return "cpu" where there is nothing else to compute on; None = not known."""
    kinds = {device.device_type for device in tf.config.get_visible_devices()}
    return "cpu" if kinds == {"CPU"} else None


def _build(key: str) -> str | None:
    with contextlib.suppress(Exception):
        return tf.sysconfig.get_build_info().get(key)
    return None


def running() -> bool:
    """Return whether TensorFlow is initialised. Initialising it here would break later settings."""
    try:
        from tensorflow.python.eager import context

        return context.context()._context_handle is not None
    except (ImportError, AttributeError):
        return False


class TensorFlowCompileClock(CompileClock):
    """Time spent tracing `tf.function`s: TensorFlow keeps the sum itself, for all threads.

    XLA's own compilations are not included: TensorFlow does not report them to Python. The
    functions of a tf.data pipeline are traced as well, whenever one is built: `model.predict` of
    an array builds one in each call. That compiles no step.
    """

    def __init__(self) -> None:
        self._cell: Any = None  # TensorFlow's counter of microseconds; None = not started
        self._context: Any = None
        self._before: tuple[int, set[str]] = (0, set())  # functions created; registered names
        super().__init__()

    def start(self) -> None:
        from tensorflow.python.eager import context
        from tensorflow.python.eager.polymorphic_function import tracing_compilation

        self._cell = tracing_compilation._graph_building_time_counter.get_cell()
        self._context = context.context()
        self._before = self._functions()

    def _functions(self) -> tuple[int, set[str]]:
        return _functions_made(), set(self._context.list_function_names())

    def explains(self, compiled_ns: int, spent_ns: int) -> bool:
        """Return whether a call of `spent_ns`, of which `compiled_ns` were tracing, was a compilation.

        That is: it took not much longer than tracing, and a function that is no pipeline's was made or traced in it.
        """
        # A traced function is optimised and set up, and compiled by XLA if requested, in the same
        # call: that takes many times as long.
        if 30 * compiled_ns <= spent_ns:
            return False
        # Functions made, and names of traced ones, at the last call and now.
        (created, names), self._before = self._before, self._functions()
        return self._before[0] > created or any(
            name.startswith("__inference_") and not self._context.get_function_def(name).attr["_tf_data_function"].b
            for name in self._before[1] - names
        )

    @property
    def ns(self) -> int:
        """Nanoseconds so far."""
        return 0 if self._cell is None else int(self._cell.value()) * 1000

    @ns.setter
    def ns(self, value: int) -> None:
        pass  # the sum is TensorFlow's
