"""Energy, its price, and accelerator utilization, in words."""

from collections.abc import Mapping

from gpu_util_callback.diagnosis.report_types import AcceleratorWords, Cost
from gpu_util_callback.words import energy, percent

_KWH_J = 3.6e6
_WORTH_SAYING = 0.01  # of the energy: below it, a category is not worth a word
_WHOLE = 0.95  # of the time: below it, what was measured is not all


def cost_of_run(run: Mapping, per_kwh: float | None, per_gpu_hour: float | None) -> Cost:
    """Return the cost of a run at the user's prices, in the user's own currency.

    None where a price was not given, or the energy or the hours are not known.

    Args:
        per_kwh: price of electricity, for each kilowatt-hour.
        per_gpu_hour: price of a GPU, busy or not, for each hour.
    """

    def times(price: float | None, amount: float | None) -> float | None:
        return None if price is None or amount is None else round(price * amount, 6)

    used = [gpu for gpu in run["gpus"] if gpu["used_by_framework"]]
    hours = len(used) * run["wall_s"] / 3600 if used and run["wall_s"] else None
    kwh = run["energy"]["total_j"] / _KWH_J if run.get("energy") else None
    return {"energy": times(per_kwh, kwh), "gpu_hours": times(1, hours), "gpu_time": times(per_gpu_hour, hours)}


def energy_sentence(run: Mapping) -> str:
    """Return a run's energy by activity of the training thread, and its price; "" if unknown."""
    return " ".join(filter(None, [_energy(run), _cost(run)]))


def _energy(run: Mapping) -> str:
    """Return the energy of the GPUs in a sentence, with its largest parts outside of steps.

    "" if it was not measured.
    """
    energy_facts = run.get("energy")
    if not energy_facts:
        return ""
    total_j = energy_facts["total_j"]
    estimated = " (estimated from power samples)" if energy_facts["estimated"] else ""
    text = f"Energy: {energy(total_j)}{estimated}"
    by_time = energy_facts["by_time_j"].items()
    parts_j = sorted(((joules, name) for name, joules in by_time if name in _WHILE), reverse=True)
    parts_j = [(joules, name) for joules, name in parts_j if joules > _WORTH_SAYING * total_j]
    if parts_j:
        text += ", including " + " and ".join(f"{energy(joules)} {_WHILE[name]}" for joules, name in parts_j[:2])
    if run.get("energy_j_per_sample"):
        text += f"; {run['energy_j_per_sample']:.3g} J a sample"
    wall_s = run.get("wall_s") or 0
    if wall_s and energy_facts["measured_s"] < _WHOLE * wall_s:  # power was sampled for a part of the run
        text += f"; measured for {100 * energy_facts['measured_s'] / wall_s:.0f} % of the time"
    return f"{text}."


_WHILE = {
    "input_wait": "while waiting for input",
    "compile": "while compiling",
    "validation": "in validation",
    "callbacks": "in callbacks",
}


def _cost(run: Mapping) -> str:
    """Return what energy and GPU hours cost at the given prices, in a sentence; "" without prices."""
    cost = run.get("cost") or {}
    prices = []
    if cost.get("energy") is not None:
        prices.append(f"{cost['energy']:,.2f} for electricity")
    if cost.get("gpu_time") is not None:
        prices.append(f"{cost['gpu_time']:,.2f} for {cost['gpu_hours']:,.3g} GPU hours")
    return f"At the prices given: {', '.join(prices)}." if prices else ""


def accelerator_sentence(run: Mapping) -> str:
    """Return the accelerator utilization (AU) next to the benchmark's limits; "" without a GPU or a value.

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
    limits = "MLPerf Storage asks for 90 % or 70 %"
    return {"name": "AU", "value": percent(run["au_pct"]), "limits": limits, "text": text} if text else None
