"""Launch-bound: the GPU waits for the host between many short kernels."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import ESTIMATED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits, Threshold
from gpu_util_callback.diagnosis._windows import share_of, traced_gpus

__all__ = ["LaunchBound"]


class LaunchBound(Rule):
    """Profiler windows show the GPU idle between launches, and the kernels are short.

    Without a window one case is still plain: Keras was told to run eagerly, no wait for input
    explains the idle GPU, and the GPU is idle most of the time.
    """

    cause = "launch_bound"
    title = "Launch-bound"
    sources = ("profiler windows", "or: run_eagerly, GPU utilization and input wait")
    thresholds: ClassVar = {
        "idle_launch_pct": Threshold(15, "XProf calls 15 % of kernel launch time high"),
        "mean_kernel_us": Threshold(
            100, "a launch costs 5-10 µs of host time; above 100 µs a kernel hides ten of them"
        ),
        "eager_active_pct": Threshold(50, "eager and more than half busy: something else first"),
        "min_steps": Threshold(30, "fewer steps are mostly warm-up"),
    }
    unknown = "no profiler window shows what the GPU did between kernels"

    def missing(self, run: Run) -> bool:
        return not traced_gpus(run) and not run.fact("fit", "run_eagerly", default=False)

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        if traced_gpus(run):
            yield from self._traced(run, limits)
        else:
            yield from self._eager(run, limits)

    def _traced(self, run: Run, limits: Limits) -> Iterable[Loss]:
        share = share_of(run, "idle_launch")
        assert share is not None
        kernels = sum(run.traced.gpus[gpu].kernels for gpu in share.gpus)
        steps = sum(run.traced.gpus[gpu].steps for gpu in share.gpus)
        busy = sum(
            run.traced.gpus[gpu].kernel_busy_ns or run.traced.gpus[gpu].ns["kernel"]
            for gpu in share.gpus
        )
        if share.pct < limits["idle_launch_pct"] or not kernels:
            return
        mean_us = busy / kernels / 1e3
        if mean_us > limits["mean_kernel_us"]:
            return
        yield Loss(
            cause=self.cause,
            title=self.title,
            where=None,
            lost_ns=share.lost_ns,
            confidence=ESTIMATED,
            evidence={
                "idle_launch_pct": round(share.pct, 1),
                "mean_kernel_us": round(mean_us, 1),
                "kernels_per_step": round(kernels / steps),
                "idle_launch_ms_per_step": round(share.ms_per_step, 3),
                "traced_steps": share.steps,
            },
            threshold={
                "idle_launch_pct": limits["idle_launch_pct"],
                "mean_kernel_us": limits["mean_kernel_us"],
            },
            advice=_advice(run, round(kernels / steps)),
            gpus=list(share.gpus),
        )

    def _eager(self, run: Run, limits: Limits) -> Iterable[Loss]:
        if run.steps.total_rows < limits["min_steps"] or not run.used_gpus:
            return
        start, end = int(run.steps["start_ns"][0]), int(run.steps["end_ns"].max())
        idle = run.idle(start, end)
        if idle is None or idle.active_pct >= limits["eager_active_pct"]:
            return
        spent = run.steps.total("duration_ns")
        explained = sum(
            run.steps.total(name) for name in ("input_wait_ns", "compile_ns", "callbacks_ns")
        )
        # What is left of the idle time when all that has another explanation was idle, too.
        lost = min(idle.idle_ns, spent) - explained
        if lost < (1 - limits["eager_active_pct"] / 100) * (spent - explained):
            return
        yield Loss(
            cause=self.cause,
            title="Eager execution leaves the GPU idle",
            where=None,
            lost_ns=max(0, lost),
            confidence=ESTIMATED,
            evidence={
                "gpu_active_pct": round(idle.active_pct, 1),
                "run_eagerly": "yes",
                "unexplained_idle_s": round(lost / 1e9, 3),
            },
            threshold={"gpu_active_pct": limits["eager_active_pct"]},
            advice=_eager_advice(),
            gpus=list(idle.gpus),
        )


def _eager_advice() -> Advice:
    return Advice(
        "The model runs eagerly: Python launches every operation by itself, and the GPU waits for "
        "the next one. Let Keras compile the step into a graph.",
        "model.compile(..., run_eagerly=False)",
    )


def _advice(run: Run, per_step: int) -> Advice:
    if run.fact("fit", "run_eagerly", default=False):
        return _eager_advice()
    text = (
        f"A step launches {per_step:,} kernels, too short to hide the next launch. Fuse them, and "
        "give each more to do with a larger batch."
    )
    if run.framework == "torch":
        return Advice(text, 'model = torch.compile(model, mode="reduce-overhead")')
    if run.fact("fit", "jit_compile", default=False) or run.framework == "jax":
        return Advice(
            f"A step launches {per_step:,} short kernels although it is compiled: give each "
            "more to do with a larger batch.",
            "model.fit(x, y, batch_size=4 * batch_size)",
        )
    return Advice(text, "model.compile(..., jit_compile=True)")
