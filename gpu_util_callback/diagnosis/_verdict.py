"""The run in one sentence."""

from collections.abc import Sequence

from gpu_util_callback.diagnosis._rule import Loss
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._traced import shows_no_steps
from gpu_util_callback.diagnosis._words import duration, percent, times

__all__ = ["sentence"]

# cause -> how the sentence begins; the title serves where a cause is not listed.
_OPENINGS = {
    "input_bound": "The input pipeline starves the GPU",
}
# Without a GPU in use the training waits, not the GPU.
_OPENINGS_WITHOUT_GPU = {
    "input_bound": "Training waits for its input",
}


def sentence(run: Run, claims: Sequence[Loss]) -> str:
    """The verdict: what cost most, how much of how much, and what mending it is worth.

    Args:
        claims: settled and ordered, what to do first in front.
    """
    if not len(run.steps):
        return "No training step was recorded yet."
    wall = run.wall_ns
    blocking = next((claim for claim in claims if claim.blocking), None)
    if blocking is not None:
        return f"{blocking.title}."
    costly = [claim for claim in claims if claim.lost_ns]
    if not costly:
        if claims:
            return f"{claims[0].title}; what it costs is not known."
        return _healthy(run)
    by_cause: dict[tuple[str, str], int] = {}
    saves: dict[tuple[str, str], int] = {}
    for claim in costly:
        name = claim.title if claim.cause not in _OPENINGS else ""
        key = (claim.cause, name)
        by_cause[key] = by_cause.get(key, 0) + int(claim.lost_ns or 0)
        saves[key] = saves.get(key, 0) + int(claim.saves_ns or 0)
    (cause, title), lost = max(by_cause.items(), key=lambda item: item[1])
    saved = min(saves[cause, title], wall)
    lost = min(lost, wall)
    openings = _OPENINGS if run.used_gpus else _OPENINGS_WITHOUT_GPU
    opening = openings.get(cause) or title or _OPENINGS[cause]
    gain = wall / max(1, wall - saved)
    said = f"{opening}: {duration(lost / 1e9)} of {duration(wall / 1e9)}."
    if gain >= 1.05:
        return f"{said} Fixed, this run is up to {times(gain)} faster."
    return said


def _healthy(run: Run) -> str:
    if shows_no_steps(run.facts, run.steps.total_rows):
        return "The trace shows no steps: its work is measured, its idle time is not judged."
    step_ns = run.steps.total("body_ns") + run.steps.total("gpu_wait_ns")
    known = run.account.get("time_s") if run.account else None
    seconds = float(known["step"]) if known and known.get("step") is not None else step_ns / 1e9
    wall = run.wall_ns / 1e9
    share = percent(min(100.0, 100 * seconds / max(1e-9, wall)))
    said = f"Nothing held training back: {share} of {duration(wall)} went into training steps"
    if not run.used_gpus:
        return f"{said} (no GPU in use)."
    idle = run.idle(run.start_ns, run.end_ns)
    if idle is None:
        return f"{said} (GPU utilization was not measured)."
    return f"{said}, the GPU was active {percent(idle.active_pct)} of the time."
