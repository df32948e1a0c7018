"""Rates of the input alone, of the model alone, and of both together: what they mean, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gpu_util_callback.recording.work import another_batch_size
from gpu_util_callback.words import rate, times, times_between

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import CeilingRow, CeilingWords, RunReport  # with all rules

# Rates closer than this are one ceiling: measurements of seconds scatter by a few percent.
_ALIKE = 0.1
_RATES = ("input_per_s", "model_per_s", "together_per_s")


@dataclass(frozen=True)
class Instead:
    """Rates of another input with the same model.

    Attributes:
        input_per_s: batches a second from the other input alone.
        together_per_s: steps a second of the other input and the model, the least and the most.
        beside_per_s: the same of the first input, measured in turns with it.
        batch_size: samples of its batch, None where not known.
        passed: a whole pass over it came before the rate: its caches were full.
    """

    input_per_s: float
    together_per_s: tuple[float, float]
    beside_per_s: tuple[float, float]
    batch_size: int | None
    passed: bool


@dataclass(frozen=True)
class Ceilings:
    """Batches a second that the input and the model can do at most, each alone.

    Attributes:
        input_per_s: batches a second from the input alone.
        model_per_s: steps a second of the model alone, on one batch that is kept.
        together_per_s: steps a second of both, as training does them now.
        batch_size: samples of a batch, None where not known.
        seconds: what measuring took, compilation included.
        framework: "tensorflow", "jax" or "torch"; "" for a loop without any.
        instead: another input with the same model, where one was measured.
    """

    input_per_s: float
    model_per_s: float
    together_per_s: float
    batch_size: int | None = None
    seconds: float = 0.0
    framework: str = ""
    instead: Instead | None = None

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
    def instead_gains(self) -> tuple[float, float]:
        """The least and the largest factor that the other input gains, in samples if known."""
        if self.instead is None:
            return 1.0, 1.0
        (least, most), (slowest, fastest) = self.instead.together_per_s, self.instead.beside_per_s
        samples = 1.0
        if self.instead.batch_size and self.batch_size:
            samples = self.instead.batch_size / self.batch_size
        return samples * least / fastest, samples * most / slowest

    @property
    def overlap_gain(self) -> float:
        """The factor gained if input and model, as they are, ran fully at the same time."""
        return max(1.0, min(self.input_per_s, self.model_per_s) / self.together_per_s)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON: the attributes, the ceiling and the gains."""
        rates = _rounded(asdict(self))
        if other := rates.pop("instead"):
            rates["instead"] = other | {"gain": _rounded(self.instead_gains)}
        return {
            **rates,
            "ceiling": self.ceiling,
            "input_gain": round(self.input_gain, 4),
            "model_gain": round(self.model_gain, 4),
            "overlap_gain": round(self.overlap_gain, 4),
        }

    def __str__(self) -> str:
        rows = (f"  {name}: {rate}" for name, rate in _rows(self))
        return "\n".join([_verdict(self), *rows, *_instead_verdict(self)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(rate)}</td></tr>"
            for name, rate in _rows(self)
        )
        other = "".join(f"<p><b>{escape(text)}</b></p>" for text in _instead_verdict(self))
        return f"<p><b>{escape(_verdict(self))}</b></p><table>{rows}</table>{other}"


def _rounded(value: Any) -> Any:
    """Round each float in dictionaries and tuples to four decimals."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


def _verdict(measured: Ceilings) -> str:
    perfect, at_once = times(measured.input_gain), times(measured.overlap_gain)
    if measured.input_gain <= 1 + _ALIKE:
        return f"The model is the ceiling: a perfect input would gain {100 * (measured.input_gain - 1):.0f} % at most."
    takes_turns = measured.overlap_gain > 1 + _ALIKE
    if measured.ceiling == "input":
        more = f"; made while the model computes, {at_once}" if takes_turns else ""
        return f"The input is the ceiling: a perfect one makes training up to {perfect} faster{more}."
    if not takes_turns or perfect == at_once:
        return (
            f"The input takes time from the model: made while the model computes, training is up to {perfect} faster."
        )
    return (
        "Input and model take turns: an input that is made while the model computes makes training "
        f"up to {at_once} faster, one without any cost {perfect}."
    )


def _instead_verdict(measured: Ceilings) -> list[str]:
    """Return the sentence on the other input, if one was measured."""
    if measured.instead is None:
        return []
    least, most = measured.instead_gains
    if least > 1 + _ALIKE:
        text = f"The other input makes training {times_between(least, most)} faster."
    elif most < 1 / (1 + _ALIKE):
        text = f"The other input makes training {times_between(1 / most, 1 / least)} slower."
    else:
        text = f"The other input makes no clear difference: {least:.2f} to {most:.2f} times as fast, measured in turns."
    if not measured.instead.passed:
        text += " Its first pass was not over: a cache would show only after it. Give more seconds."
    return [text]


def _rows(measured: Ceilings) -> list[tuple[str, str]]:
    rates = [(name, per_s, measured.batch_size) for name, per_s in _rates(measured)]
    if (other := measured.instead) is not None:
        rates += [
            ("the other input alone", other.input_per_s, other.batch_size),
            ("the other input and the model", fmean(other.together_per_s), other.batch_size),
        ]
    return [(name, ", ".join(filter(None, _rate(per_s, size)))) for name, per_s, size in rates]


def _rates(measured: Ceilings) -> list[tuple[str, float]]:
    return [
        ("input alone", measured.input_per_s),
        ("model alone", measured.model_per_s),
        ("both, as now", measured.together_per_s),
    ]


def _rate(per_s: float, batch_size: int | None) -> tuple[str, str]:
    """Return a rate in batches, and in samples where a batch's size is known."""
    samples = f"{per_s * batch_size:,.0f} samples/s" if batch_size else ""
    return f"{rate(per_s)} batches/s", samples


def _measured(run: RunReport) -> Ceilings | None:
    """Return what was measured before a run, None where it was not, or says nothing."""
    measured: Mapping | None = run.get("ceilings")
    if not measured or not all(measured[name] > 0 for name in _RATES):
        return None
    names = [field.name for field in fields(Ceilings) if field.name != "instead"]
    return Ceilings(**{name: measured[name] for name in names if measured.get(name) is not None})


def _unlike(measured: Ceilings, run: RunReport) -> str:
    """Return the note that the run's batches are of another size; "" where they are not."""
    size = another_batch_size(measured.batch_size, run.get("fit") or {})
    if size is None:
        return ""
    return f"Measured with batches of {measured.batch_size:,}, trained with {size:,}."


def ceilings_sentence(run: RunReport) -> str:
    """Return the rates that were measured before a run, and which is the ceiling; or ""."""
    measured = _measured(run)
    if measured is None:
        return ""
    rates = [rate(per_s) for _, per_s in _rates(measured)]
    sentence = (
        f"Measured before training: input alone {rates[0]} batches/s, model alone {rates[1]}, "
        f"both together {rates[2]}. {_verdict(measured)}"
    )
    return " ".join(filter(None, [sentence, _unlike(measured, run)]))


def ceilings_in_words(run: RunReport) -> CeilingWords | None:
    """Return what was measured before a run as the tab shows it, next to the run's own rate.

    Without the run's own rate, both together as measured stand in its place.
    """
    measured = _measured(run)
    if measured is None:
        return None
    rates = _rates(measured)
    samples_per_s = run.get("samples_per_s")
    if samples_per_s and measured.batch_size:
        rates[2] = ("this run", samples_per_s / measured.batch_size)
    rows: list[CeilingRow] = []
    for name, per_s in rates:
        batches, samples = _rate(per_s, measured.batch_size)
        rows.append({"name": name, "batches": batches, "samples": samples, "per_s": per_s})
    return {"text": " ".join(filter(None, [_verdict(measured), _unlike(measured, run)])), "rows": rows}
