"""Host stall: the GPU idles in steps while the host does something other than feeding it."""

import re
from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.traces.hostside import culprit
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["HostStall"]

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


class HostStall(TraceRule):
    """Nothing is launched for a good part of the steps, and no batch or result is awaited."""

    cause = "host_stall"
    title = "The host does something else"
    sources = ("steps", "GPU events", "calls of the host")
    thresholds: ClassVar = {
        "idle_host_pct": Threshold(
            20, "a profiler alone adds 10-20 % to the host's side of small steps"
        ),
    }
    unknown = "the trace shows no steps with enough GPU work, or nothing of the host"

    def missing(self, scene: Scene) -> bool:
        return not (scene.p.devices and scene.p.idle_judged and scene.p.process.has_host)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        pct = scene.pct("idle_host")
        if pct < limits["idle_host_pct"]:
            return
        worst = max(scene.p.active, key=lambda d: int(d.account.steps["idle_host"].sum()))
        idle = worst.account.sets["idle_host"].clip(*scene.window)
        name = culprit(scene.p.process, scene.names, idle)
        yield self.finding(
            f"The GPU idles {pct:.0f} % of the time while the host does something else",
            _advice(name),
            lost_ps=pct / 100 * scene.total_ps,
            severity=pct / 100,
            gpus=scene.gpus,
            threshold={"idle_host_pct": limits["idle_host_pct"]},
            evidence={"idle_host_pct": pct, "host_activity": name or None},
        )


def _advice(name: str) -> Advice:
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
            "one call."
        )
    if name:
        return Advice(
            f"Most of that time the host is in {name}: move it out of the step or make it faster."
        )
    return Advice("Look at what the host does between the launches: Python, logging, callbacks.")
