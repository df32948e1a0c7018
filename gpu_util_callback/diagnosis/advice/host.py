"""Advice on what the host does: in calls of `predict`, and while a trace's GPUs wait for it."""

import re

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.words import duration

PREDICT_ADVICE = Advice(
    "Keras makes a data adapter, a pipeline and an iterator in every call of predict: it is meant "
    "for data sets. For one batch at a time call predict_on_batch, which computes the same, or the "
    "model itself inside a compiled function.",
    "predictions = model.predict_on_batch(batch)  # in place of model.predict(batch)",
)

# Calls of compiled functions, and their internals in the frameworks.
_RUNTIME = re.compile(
    r"PjitFunction\(|FunctionRun|EagerLocalExecute|EagerExecute|EagerKernelExecute|ExecutorState"
    r"|KernelAndDevice|(multi|one)_step_on_|PJRT_|PjRt|Pjrt|TfrtCpu|GpuExecutable|XlaLaunch"
)
_COMPILES = re.compile(
    r"xla.?compil|backend_compile|compile_(fx|or_get)|compileandload|hlo.?pass|autotun|_dynamo"
    r"|_inductor",
    re.IGNORECASE,
)


_RECORD_LATER = {
    "torch": "schedule = torch.profiler.schedule(wait=1, warmup=3, active=3)",
    "tensorflow": "keras.callbacks.TensorBoard(log_dir, profile_batch=(10, 20))",
}


def traced_too_early(run: Run, name: str, took_ns: int) -> Advice:
    """Return advice on a trace that shows what a program pays for once, and hardly its steps."""
    return Advice(
        f"{name} takes {duration(took_ns / 1e9)}, once. Record after the warm-up, some steps "
        "later: this part of the trace does not show what holds the other steps back.",
        _RECORD_LATER.get(run.framework, ""),
        0.0,
    )


def host_activity(name: str) -> Advice:
    """Return advice on what a trace's host does while the GPUs wait for it; "" = not known."""
    name = name.removeprefix("$")  # the profiler's mark of Python functions
    if _COMPILES.search(name):
        return Advice(
            f"Most of that time the host compiles ({name}). Trace later steps; if they compile, "
            "too, keep the shapes of the batches the same."
        )
    if _RUNTIME.match(name):
        return Advice(
            f"Most of that time the host is in {name}: the framework itself prepares and starts "
            "the work of a step. Give each call more to do: a larger batch, or several steps in "
            "one call.",
            saves=0.0,  # how much less it then prepares is not known
        )
    if name:
        return Advice(f"Most of that time the host is in {name}: move it out of the step or make it faster.")
    return Advice("Look at what the host does between the launches: Python, logging, callbacks.", saves=0.0)
