"""Energy, its price, and accelerator utilization, in words."""

from collections.abc import Mapping

from gpu_util_callback.diagnosis.report_types import AcceleratorWords, Cost
from gpu_util_callback.words import HOST_TIME, energy, percent

_KWH_J = 3.6e6
_WORTH_SAYING = 0.01  # of the energy: below it, a category is not worth a word
_WHOLE = 0.95  # of the time: below it, what was measured is not all


class Prices:
    """Prices that the user stated; in the user's own currency.

    Args:
        per_kwh: of electricity.
        per_gpu_hour: of a GPU, busy or not.
    """

    def __init__(self, per_kwh: float | None = None, per_gpu_hour: float | None = None):
        self.per_kwh = per_kwh
        self.per_gpu_hour = per_gpu_hour

    def __bool__(self) -> bool:
        return self.per_kwh is not None or self.per_gpu_hour is not None

    def of(self, run: Mapping) -> Cost:
        """Return the cost of a run; None without price or measure."""
        used = [gpu for gpu in run["gpus"] if gpu["used_by_framework"]]
        hours = len(used) * run["wall_s"] / 3600 if used and run["wall_s"] else None
        joules = (run.get("energy") or {}).get("total_j")
        return {
            "energy": _times(self.per_kwh, None if joules is None else joules / _KWH_J),
            "gpu_hours": None if hours is None else round(hours, 6),
            "gpu_time": _times(self.per_gpu_hour, hours),
        }


def _times(price: float | None, amount: float | None) -> float | None:
    return None if price is None or amount is None else round(price * amount, 6)


def energy_sentence(run: Mapping) -> str:
    """Return a run's energy by activity of the training thread, and its price; "" if unknown."""
    parts = [part for part in (_energy(run), _cost(run)) if part]
    return " ".join(parts)


def _energy(run: Mapping) -> str:
    use = run.get("energy")
    if not use:
        return ""
    total = use["total_j"]
    estimated = " (estimated from power samples)" if use["estimated"] else ""
    text = f"Energy: {energy(total)}{estimated}"
    spent = sorted(
        (
            (joules, name)
            for name, joules in use["by_time_j"].items()
            if name in HOST_TIME and name not in ("step", "other") and joules > _WORTH_SAYING * total
        ),
        reverse=True,
    )
    if spent:
        text += ", including " + " and ".join(f"{energy(joules)} {_WHILE[name]}" for joules, name in spent[:2])
    if run.get("energy_j_per_sample"):
        text += f"; {run['energy_j_per_sample']:.3g} J a sample"
    wall = run.get("wall_s") or 0
    if wall and use["measured_s"] < _WHOLE * wall:
        text += f"; measured for {100 * use['measured_s'] / wall:.0f} % of the time"
    return f"{text}."


_WHILE = {
    "input_wait": "while waiting for input",
    "compile": "while compiling",
    "validation": "in validation",
    "callbacks": "in callbacks",
}


def _cost(run: Mapping) -> str:
    cost = run.get("cost") or {}
    prices = []
    if cost.get("energy") is not None:
        prices.append(f"{cost['energy']:,.2f} for electricity")
    if cost.get("gpu_time") is not None:
        prices.append(f"{cost['gpu_time']:,.2f} for {cost['gpu_hours']:,.3g} GPU hours")
    return f"At the prices given: {', '.join(prices)}." if prices else ""


def accelerator_sentence(run: Mapping) -> str:
    """Return the accelerator utilization next to the benchmark's limits; "" without GPU or value.

    The limits are those of MLPerf Storage's training workloads.
    """
    pct = run.get("au_pct")
    if pct is None or not any(gpu["used_by_framework"] for gpu in run["gpus"]):
        return ""
    epochs = run.get("au_epochs") or []
    over = f", mean of {len(epochs):,} epochs" if epochs[1:] else ""
    return (
        f"Accelerator utilization (AU, as in MLPerf Storage): {percent(pct)}{over}; "
        "the benchmark asks for 90 % (3D U-Net, ResNet-50) or 70 % (CosmoFlow)."
    )


def accelerator_in_words(run: Mapping) -> AcceleratorWords | None:
    """Return the accelerator utilization as the tab shows it: short, and as the whole sentence."""
    text = accelerator_sentence(run)
    if not text:
        return None
    return {
        "name": "AU",
        "value": percent(run["au_pct"]),
        "limits": "MLPerf Storage asks for 90 % or 70 %",
        "text": text,
    }
