"""From profiler windows to the run: a category's share, and what it costs over all steps."""

from dataclasses import dataclass

from gpu_util_callback.diagnosis._run import Run

__all__ = ["WINDOW_STEPS", "Share", "share_of", "traced_gpus"]

# Steps a window must have before it stands for the run.
WINDOW_STEPS = 3


@dataclass(frozen=True, slots=True)
class Share:
    """A category over the traced GPUs that ran kernels.

    Attributes:
        pct: of the traced steps, waiting for input included (as the timeline shows it).
        lost_ns: extrapolated to all steps of the run.
        ms_per_step: mean over steps and GPUs.
    """

    pct: float
    lost_ns: int
    ms_per_step: float
    steps: int
    gpus: tuple[int, ...]


def traced_gpus(run: Run) -> list[int]:
    """The GPUs that ran kernels in enough traced steps."""
    return [index for index, gpu in sorted(run.traced.gpus.items())
            if index >= 0 and gpu.steps >= WINDOW_STEPS and gpu.duration_ns > 0
            and gpu.kernel_busy_ns + gpu.ns["kernel"] > 0]  # fmt: skip


def _idle_at_most(run: Run, index: int) -> float:
    """The largest share of the steps in which no kernel can have run, 0-1.

    SMs are active only while kernels run: where GPM counted more than a window left room for, the
    profiler itself made the difference (its cost a kernel, or kernels of CUDA graphs it missed).
    """
    if not len(run.steps):
        return 1.0
    start, end = int(run.steps["start_ns"][0]), int(run.steps["end_ns"].max())
    seen = run.gpu_mean(index, "sm_active_pct", start, end)
    return 1.0 if seen is None else max(0.0, 1 - seen[0] / 100)


def share_of(run: Run, *categories: str) -> Share | None:
    """How much of the steps the categories take, mean over the traced GPUs; None if untraced.

    Steps outside the windows are taken to be like those inside, apart from their input wait and
    compilation, which are known for every step.
    """
    gpus = traced_gpus(run)
    if not gpus:
        return None
    pct = working = per_step = 0.0
    for index in gpus:
        gpu = run.traced.gpus[index]
        spent = sum(gpu.ns[name] for name in categories)
        if "collective" not in categories:
            spent = min(spent, round(_idle_at_most(run, index) * gpu.duration_ns))
        pct += 100 * spent / gpu.duration_ns
        working += spent / max(1, gpu.duration_ns - gpu.ns["idle_input"])
        per_step += spent / gpu.steps / 1e6
    steps = run.steps
    untouched = steps.total("duration_ns") - sum(
        steps.total(name) for name in ("input_wait_ns", "compile_ns", "callbacks_ns")
    )
    count = len(gpus)
    return Share(
        pct / count,
        max(0, round(working / count * untouched)),
        per_step / count,
        max(run.traced.gpus[index].steps for index in gpus),
        tuple(gpus),
    )
