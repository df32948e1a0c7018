"""Energy and accelerator utilization, in words."""

from collections.abc import Mapping

from gpu_util_callback.diagnosis.report_types import AcceleratorWords
from gpu_util_callback.words import HOST_TIME, energy, percent

_WORTH_SAYING = 0.01  # of the energy: below it, a category is not worth a word
_WHOLE = 0.95  # of the time: below it, what was measured is not all


def energy_sentence(run: Mapping) -> str:
    """Return a run's energy by activity of the training thread; "" if unknown."""
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
