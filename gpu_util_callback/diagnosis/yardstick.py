"""MFU of trainings that others measured on a card, to stand beside a run's own.

Measured by N. Enskat, P. Wiesner and O. Kao (MIT): language models fine-tuned in PyTorch, eagerly,
with sequences of 11 tokens; medians of eight configurations. Their MFU is of the matrix products of
all layers and of the same dense peaks as ours. Their third card, an RTX 4070 Ti, is left out: its
peak is of figures "with sparsity".
"""

import re

from gpu_util_callback.diagnosis.report_types import GpuReport, Yardstick
from gpu_util_callback.diagnosis.thresholds import DOUBLE
from gpu_util_callback.words import between

SOURCE = "505 training configurations a card, N. Enskat, P. Wiesner and O. Kao, 2026 (MIT)"
BATCHES = 64, 128  # sequences; smaller ones leave the card idle
# Card -> precision -> (parameters, MFU in % with a batch of 64 and of 128 sequences).
TABLE: dict[str, dict[str, tuple[tuple[float, float, float], ...]]] = {
    r"A100-SXM4-80GB": {
        "bf16": ((774e6, 10.7, 18.0), (1557e6, 15.5, 21.6), (3086e6, 25.5, 35.4)),
        "fp16": ((774e6, 12.4, 18.9), (1557e6, 17.0, 22.9), (3086e6, 27.9, 39.4)),
        "tf32": ((774e6, 21.2, 26.4), (1557e6, 24.7, 29.6), (3086e6, 32.1, 40.3)),
    },
    r"L40": {
        "bf16": ((774e6, 17.4, 24.3), (1544e6, 22.5, 31.5), (1557e6, 19.8, 26.3)),
        "fp16": ((774e6, 17.8, 26.6), (1544e6, 24.7, 36.7), (1557e6, 22.0, 30.0)),
        "tf32": ((774e6, 27.8, 34.2), (1544e6, 31.1, 41.4), (1557e6, 27.9, 35.6)),
    },
}


def yardstick(gpu: GpuReport, parameters: float | None) -> Yardstick | None:
    """Return the MFU that others reached; None for a card, precision or size nobody measured.

    Args:
        gpu: of the report, with its peak.
        parameters: of the model.
    """
    name, precision = gpu["name"] or "", gpu["peak"] and gpu["peak"]["precision"]
    card = next((card for card in TABLE if re.fullmatch(f"(NVIDIA )?{card}", name)), None)
    rows = TABLE[card].get(precision or "", ()) if card else ()
    alike = [row for row in rows if row[0] / DOUBLE <= (parameters or 0) <= DOUBLE * row[0]]
    if not alike:
        return None
    sizes = sorted(f"{size / 1e9:.1f}" for size, _, _ in alike)
    low, high = min(row[1] for row in alike), max(row[2] for row in alike)
    return {
        "low_pct": low,
        "high_pct": high,
        "text": f"others reached {between(f'{low:.0f}', f'{high:.0f}')} % with language models of "
        f"{between(sizes[0], sizes[-1])} billion parameters in "
        f"{precision} on this card",
        "source": SOURCE,
    }
