"""Samples of the training thread's Python stack in the steps of a custom loop."""

from dataclasses import dataclass

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.thresholds import A_TENTH
from gpu_util_callback.recording.manifest_facts import Dispatch


@dataclass(frozen=True, slots=True)
class StackSamples:
    """Samples of the training thread's activity within steps of a custom loop.

    Attributes:
        eager_pct: share of the samples that met an operation started by itself; 0 if a compiled
            function was met in more than a tenth as many.
        predict_set_up_pct: share of those that met the set-up of a call of `model.predict`.
        operations: started per step; None = not known.
        op_us: a step's own time for each of them; None = not known.
        function: the function the loop calls for a step; None = not known.
    """

    count: int
    eager_pct: float
    predict_set_up_pct: float
    operations: int | None
    op_us: float | None
    function: str | None


def stack_samples_of(run: Run) -> StackSamples | None:
    """Return the stack samples of a run's steps; None without samples."""
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    samples, eager, compiled = (
        int(count or 0) for count in (dispatch.get("samples"), dispatch.get("eager"), dispatch.get("compiled"))
    )
    if not samples:
        return None
    mostly = compiled <= A_TENTH * (eager + compiled)
    operations = dispatch.get("operations")
    rows = run.steps.total_rows
    body_us = run.steps.total("body_ns") / rows / 1e3 if rows else 0.0
    return StackSamples(
        samples,
        100 * eager / samples if mostly else 0.0,
        100 * int(dispatch.get("predict_set_up") or 0) / samples,
        int(operations) if operations else None,
        body_us / operations if operations and body_us else None,
        dispatch.get("function"),
    )
