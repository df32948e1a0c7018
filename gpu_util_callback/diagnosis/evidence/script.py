"""The time of a program that fits several times, from its first fit to its last."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH, FOUR_FIFTHS
from gpu_util_callback.words import duration


@dataclass(frozen=True, slots=True)
class Script:
    """The time of a process from its first fit to its last, in seconds.

    Attributes:
        between_s: time between the fits, by name.
        compilations, compile_s: of train functions in the fits.
        predict_set_up_s: what `predict` needs to prepare each call, part of `between_s`.
    """

    fits: int
    fits_s: float
    between_s: Mapping[str, float]
    compilations: int = 0
    compile_s: float = 0.0
    predict_set_up_s: float = 0.0

    @classmethod
    def of(cls, process: Mapping | None) -> "Script | None":
        """Read a manifest's `process`; None where promises about a fit hold for the whole."""
        if not process:
            return None
        script = cls(
            process["fits"],
            process["fits_s"],
            process["between_s"],
            process.get("compilations") or 0,
            process.get("compile_s") or 0.0,
            process.get("predict_set_up_s") or 0.0,
        )
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

    @property
    def passed_between(self) -> str:
        """The time between the fits, as a sentence."""
        part = duration(self.between_s[self.longest])
        whole = f"{duration(self.between)} of {duration(self.wall_s)} passed between the fits"
        return f"{whole}, {part} in {self.longest}."

    @property
    def compiled_again(self) -> str:
        """The time in which each fit compiled, as a sentence."""
        spent = f"{duration(self.compile_s)} of the {duration(self.fits_s)} in them"
        return f"All {self.fits:,} fits compiled, each for itself: {spent}."

    def saves(self, wall_s: float, saves_s: float | None) -> float | None:
        """Return what all fits save if a recording of them, `wall_s` long, saves `saves_s`."""
        if saves_s is None or not wall_s:
            return None
        return saves_s * max(1.0, self.fits_s / wall_s)
