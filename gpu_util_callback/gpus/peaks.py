"""The most floating-point operations that a GPU does per second: the denominator of its MFU.

Dense, as the data sheet of the GPU has it at its boost clock; products of 16 bits are summed in 32,
as frameworks do, which GeForce does at half the rate. A figure of a data sheet "with sparsity" is
twice what a training can reach. Pascal alone sums 16 bits in 16: its fp16 is that.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_util_callback.recording.manifest_facts import PeakFacts

PRECISIONS = ("fp16", "bf16", "tf32", "fp32")

_FIGURES = json.loads(Path(__file__).with_name("peaks.json").read_text(encoding="utf-8"))
# What the driver calls a GPU, without "NVIDIA" and "Tesla", as a whole: its TFLOP/s in fp16, bf16, TF32 and fp32
# (None: not on its tensor cores), its multiprocessors, and the source. Of documents that are marked as not compared,
# copies or quotations were read.
_TABLE: Sequence[tuple[str, tuple[float | None, ...], int, str]] = _FIGURES["gpus"]
# Operations of a multiprocessor per clock in fp16, bf16, TF32, fp32, and its CUDA cores, by compute capability.
_ARCHITECTURES: dict[str, tuple[tuple[int | None, ...], int]] = _FIGURES["architectures"]
# Turing's GTX has no tensor cores; models made for export have slower ones than their architecture.
_NOT_AS_THEIR_ARCHITECTURE = re.compile(r"GTX 16|\bH20\b|\bL20\b|\bL2\b|\bA16\b|6000D|CMP ")


def peak_of(gpu: Mapping[str, Any], precision: str) -> tuple[PeakFacts | None, str]:
    """Return a GPU's peak in a precision, or None and why it is not known.

    Args:
        gpu: of the manifest.
        precision: one of `PRECISIONS`; TF32 is fp32 on GPUs that have none.
    """
    name = _bare_name(str(gpu.get("name") or ""))
    capability = str(gpu.get("compute_capability") or "")
    if precision not in PRECISIONS:
        return None, f"no peak is known for {precision}"
    table_row = next((row for row in _TABLE if re.fullmatch(row[0], name)), None)
    if table_row is not None:
        rates: tuple[float | None, ...] = table_row[1]
        most, precision = _rate_or_lower(rates, precision)
        if most is None:
            return None, f"{name} has no tensor cores for {precision}"
        if not gpu.get("mig"):
            return {"tflops": most, "precision": precision, "source": table_row[3]}, ""
        multiprocessors = gpu.get("multiprocessors")
        if not multiprocessors:
            return None, "how much of the GPU this MIG device has is not known"
        share = f"{multiprocessors} of {table_row[2]} multiprocessors of {most:g} TFLOP/s"
        tflops = round(most * multiprocessors / table_row[2], 1)
        return {"tflops": tflops, "precision": precision, "source": table_row[3], "derived": share}, ""
    return _derived(gpu, name, capability, precision)


def _bare_name(name: str) -> str:
    """Return a GPU's name without its maker, and without the size of a slice of it."""
    name = re.sub(r"^(NVIDIA )?(Tesla )?(NVIDIA )?", "", name.strip())
    return re.sub(r" MIG( .*)?$", "", name)


def _rate_or_lower(rates: Sequence[float | None], precision: str) -> tuple[float | None, str]:
    """Return a peak in FLOP/s and its precision: that of fp32 where a GPU has no TF32; None = unknown."""
    rate_of = dict(zip(PRECISIONS, rates, strict=True))
    if precision == "tf32" and rate_of["tf32"] is None:
        precision = "fp32"
    return rate_of[precision], precision


def _derived(gpu: Mapping[str, Any], name: str, capability: str, precision: str) -> tuple[PeakFacts | None, str]:
    """Return the peak at the highest clock, by what the architecture does per clock, and ""; or None and why not.

    Args:
        gpu: of the manifest.
        name: without the maker's.
        capability: compute capability, "9.0".
        precision: one of `PRECISIONS`; fp32 stands for a TF32 that the GPU lacks.
    """
    architecture = _ARCHITECTURES.get(capability)
    clock, cores = gpu.get("sm_clock_max_mhz"), gpu.get("cores")
    if architecture is None or not name or _NOT_AS_THEIR_ARCHITECTURE.search(name):
        return None, f"the peak of {name or 'this GPU'} is not known"
    multiprocessors = gpu.get("multiprocessors")
    if not multiprocessors and cores and not gpu.get("mig"):
        multiprocessors = cores // architecture[1]
    if not clock or not multiprocessors:
        return None, f"multiprocessors and clock of {name} are not known"
    rate, precision = _rate_or_lower(architecture[0], precision)
    if rate is None:
        return None, f"{name} has no tensor cores for {precision}"
    # summing in 32 bits: GeForce does that at half the rate
    halved = "GeForce" in name and precision in ("fp16", "bf16", "tf32")
    rate = rate // 2 if halved else rate
    tflops = round(multiprocessors * rate * clock / 1e6, 1)
    how = f"{multiprocessors} multiprocessors × {rate} FLOPs per clock × {clock} MHz at most"
    return {"tflops": tflops, "precision": precision, "derived": how}, ""
