"""The program around its training: the time from its first fit to its last, and the Python of a loop's steps."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.thresholds import A_TENTH, A_TWENTIETH, FOUR_FIFTHS, MOSTLY
from gpu_util_callback.recording.manifest_facts import Dispatch


@dataclass(frozen=True, slots=True)
class Script:
    """The time of a process from its first fit to its last, in seconds.

    Attributes:
        between_s: time between the fits, by name.
        compilations, compile_s: of train functions in the fits.
        predict_set_up_s: what `predict` needs to prepare each call, part of `between_s`.
        other_at, other_at_s: the function of the program in which most of "other code" passes, at its longest line,
            and the function's time.
        inputs: different data that the fits were given; None = not known.
    """

    fits: int
    fits_s: float
    between_s: Mapping[str, float]
    compilations: int = 0
    compile_s: float = 0.0
    predict_set_up_s: float = 0.0
    other_at: str = ""
    other_at_s: float = 0.0
    inputs: int | None = None

    @classmethod
    def from_process(cls, process: Mapping | None) -> "Script | None":
        """Build from a manifest's `process`.

        None if under 5 % of the time went between the fits, or into compiling again in each fit.
        """
        if not process:
            return None
        facts = {field.name: process.get(field.name) for field in fields(cls)}
        script = cls(**{name: value for name, value in facts.items() if value is not None})
        lost_s = max(script.between, script.compiles_again_s)
        return script if lost_s >= A_TWENTIETH * script.wall_s else None

    @property
    def between(self) -> float:
        """Time between the fits."""
        return sum(self.between_s.values())

    @property
    def wall_s(self) -> float:
        """Wall time without the waits for the user."""
        return self.fits_s + self.between

    @property
    def longest(self) -> str:
        """Name of what took most of the time between the fits."""
        return max(self.between_s, key=lambda name: self.between_s[name])

    @property
    def compiles_again_s(self) -> float:
        """Time that all fits but the first spent compiling, if each of them did; else 0."""
        each = self.compilations >= FOUR_FIFTHS * self.fits
        return self.compile_s * (1 - 1 / self.fits) if each else 0.0

    def saves(self, wall_s: float, saves_s: float | None) -> float | None:
        """Return what all fits save if a recording of them, `wall_s` long, saves `saves_s`."""
        if saves_s is None or not wall_s:
            return None
        return saves_s * max(1.0, self.fits_s / wall_s)


@dataclass(frozen=True, slots=True)
class StackSamples:
    """Samples of the training thread's activity within steps of a custom loop.

    Attributes:
        eager_pct: share of the samples that met an operation started by itself; 0 if a compiled
            function was met in more than a tenth as many.
        predict_set_up_pct: share of those that met the set-up of a call of `model.predict`.
        own: share (0-1) of those in Python of the program's own.
        own_at: the line that most of these met, and its share of them.
        operations: started per step; None = not known.
        op_us: a step's own time for each of them; None = not known.
        function: the function the loop calls for a step; None = not known.
    """

    count: int
    eager_pct: float
    predict_set_up_pct: float
    own: float
    own_at: tuple[str, float]
    operations: int | None
    op_us: float | None
    function: str | None


def stack_samples_of(run: Run) -> StackSamples | None:
    """Return the stack samples of a run's steps; None without samples."""
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    samples, eager_samples, compiled_samples = (
        int(count or 0) for count in (dispatch.get("samples"), dispatch.get("eager"), dispatch.get("compiled"))
    )
    if not samples:
        return None
    own_samples = int(dispatch.get("own") or 0)  # samples in the program's own Python
    # Where the thread mostly sleeps, operations wait for the step before them: JAX hands steps over.
    computes = (dispatch.get("on_core") or 1.0) >= MOSTLY
    # Hardly any sample met a compiled function.
    mostly = computes and compiled_samples <= A_TENTH * (eager_samples + compiled_samples)
    operations = dispatch.get("operations")
    rows = run.steps.total_rows
    body_us = run.steps.total("body_ns") / rows / 1e3 if rows else 0.0
    return StackSamples(
        samples,
        100 * eager_samples / samples if mostly else 0.0,
        100 * int(dispatch.get("predict_set_up") or 0) / samples,
        own_samples / samples,
        (dispatch.get("own_at") or "", int(dispatch.get("at_place") or 0) / max(1, own_samples)),
        int(operations) if operations else None,
        body_us / operations if operations and body_us else None,
        dispatch.get("function"),
    )
