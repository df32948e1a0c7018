"""Rates of the input alone, of the model alone, and of both together: what they mean, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from gpu_util_callback.words import times

__all__ = ["Ceilings", "rates_sentence"]

# Rates closer than this are one ceiling: measurements of seconds scatter by a few percent.
_ALIKE = 0.1


@dataclass(frozen=True)
class Ceilings:
    """How many batches a second the input and the model can do at most, each alone.

    Attributes:
        input_per_s: batches a second from the input alone.
        model_per_s: steps a second of the model alone, on one batch that is kept.
        together_per_s: steps a second of both, as training does them now.
        batch_size: samples of a batch, None where not known.
        seconds: what measuring took, compilation included.
        framework: "tensorflow", "jax" or "torch"; "" for a loop without any.
    """

    input_per_s: float
    model_per_s: float
    together_per_s: float
    batch_size: int | None = None
    seconds: float = 0.0
    framework: str = ""

    @property
    def ceiling(self) -> str:
        """The slower of both, "input" or "model"; "both" where they are alike."""
        low, high = sorted((self.input_per_s, self.model_per_s))
        if low > (1 - _ALIKE) * high:
            return "both"
        return "input" if self.input_per_s < self.model_per_s else "model"

    @property
    def input_gain(self) -> float:
        """The factor that an input without any cost would gain, at most."""
        return max(1.0, self.model_per_s / self.together_per_s)

    @property
    def model_gain(self) -> float:
        """The factor that a model without any cost would gain, at most."""
        return max(1.0, self.input_per_s / self.together_per_s)

    @property
    def overlap_gain(self) -> float:
        """The factor gained if input and model, as they are, ran fully at the same time."""
        return max(1.0, min(self.input_per_s, self.model_per_s) / self.together_per_s)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON: the attributes, the ceiling and the gains."""
        rates = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return {
            **rates,
            "ceiling": self.ceiling,
            "input_gain": round(self.input_gain, 4),
            "model_gain": round(self.model_gain, 4),
            "overlap_gain": round(self.overlap_gain, 4),
        }

    def __str__(self) -> str:
        return "\n".join([_verdict(self), *(f"  {name}: {rate}" for name, rate in _rows(self))])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(rate)}</td></tr>"
            for name, rate in _rows(self)
        )
        return f"<p><b>{escape(_verdict(self))}</b></p><table>{rows}</table>"


def _verdict(found: Ceilings) -> str:
    perfect, at_once = times(found.input_gain), times(found.overlap_gain)
    if found.input_gain <= 1 + _ALIKE:
        return (
            "The model is the ceiling: a perfect input would gain "
            f"{100 * (found.input_gain - 1):.0f} % at most."
        )
    takes_turns = found.overlap_gain > 1 + _ALIKE
    if found.ceiling == "input":
        more = f"; made while the model computes, {at_once}" if takes_turns else ""
        return (
            f"The input is the ceiling: a perfect one makes training up to {perfect} faster{more}."
        )
    if not takes_turns or perfect == at_once:
        return (
            "The input takes time from the model: made while the model computes, training is up to "
            f"{perfect} faster."
        )
    return (
        "Input and model take turns: an input that is made while the model computes makes training "
        f"up to {at_once} faster, one without any cost {perfect}."
    )


def _rows(found: Ceilings) -> list[tuple[str, str]]:
    def rate(per_s: float) -> str:
        samples = f", {per_s * found.batch_size:,.0f} samples/s" if found.batch_size else ""
        return f"{_number(per_s)} batches/s{samples}"

    return [
        ("input alone", rate(found.input_per_s)),
        ("model alone", rate(found.model_per_s)),
        ("both, as now", rate(found.together_per_s)),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def rates_sentence(measured: Mapping[str, Any]) -> str:
    """Return the rates of a `Ceilings.to_dict()` in a sentence for a report."""
    rates = [_number(measured[name]) for name in ("input_per_s", "model_per_s", "together_per_s")]
    return (
        f"Measured before training: input alone {rates[0]} batches/s, model alone {rates[1]}, "
        f"both together {rates[2]}."
    )
