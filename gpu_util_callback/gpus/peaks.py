"""The most floating-point operations that a GPU does per second: the denominator of its MFU.

Dense, as the data sheet of the GPU has it at its boost clock; products of 16 bits are summed in 32,
as frameworks do, which GeForce does at half the rate. A figure of a data sheet "with sparsity" is
twice what a training can reach. Pascal alone sums 16 bits in 16: its fp16 is that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_util_callback.recording.manifest_facts import PeakFacts

PRECISIONS = ("fp16", "bf16", "tf32", "fp32")


_DATA_CENTER = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/"
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_GH200 = "https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip"
_HGX = "https://www.nvidia.com/en-us/data-center/hgx/"
_A100 = _DATA_CENTER + "a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_A30 = _DATA_CENTER + "products/a30-gpu/pdf/a30-datasheet.pdf"
_A40 = "https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf"
_A10 = _DATA_CENTER + "a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"
_A10G = "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
_A2 = _DATA_CENTER + "a2/pdf/a2-datasheet.pdf"
_L4 = "https://www.nvidia.com/en-us/data-center/l4/"
_L40 = "https://www.nvidia.com/en-us/data-center/l40/"
_L40S = "https://www.nvidia.com/en-us/data-center/l40s/"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = _DATA_CENTER + "tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_P100 = _DATA_CENTER + "tesla-p100/pdf/nvidia-tesla-p100-datasheet.pdf"
_TURING = "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"

# Of the other documents, copies or quotations were read.
_UNREAD = " (figure not compared with this document)"

# What the driver calls a GPU, without "NVIDIA" and "Tesla", as a whole: its TFLOP/s in fp16, bf16,
# TF32 and fp32 (None: not on its tensor cores), its multiprocessors, and the source.
_TABLE: tuple[tuple[str, tuple[float | None, ...], int, str], ...] = (
    (r"B200( .*)?", (2250, 2250, 1125, 75), 148, _HGX),
    (r"GH200 .*", (989.5, 989.5, 494.7, 67), 132, _GH200 + _UNREAD),
    (r"H200", (989.5, 989.5, 494.7, 67), 132, _H200),
    (r"H200 NVL", (835.5, 835.5, 417.5, 60), 132, _H200 + _UNREAD),
    (r"H100 80GB HBM3|H100 SXM.*", (989.4, 989.4, 494.7, 67), 132, _H100),
    (r"H100 NVL", (835.5, 835.5, 417.5, 60), 132, _H100 + _UNREAD),
    (r"H100 PCIe", (756, 756, 378, 51.2), 114, _H100),
    (r"A100[- ].*", (312, 312, 156, 19.5), 108, _A100),
    (r"A800[- ].*", (312, 312, 156, 19.5), 108, _A100 + _UNREAD),
    (r"A30", (165, 165, 82, 10.3), 56, _A30 + _UNREAD),
    (r"A40", (149.7, 149.7, 74.8, 37.4), 84, _A40),
    (r"A10", (125, 125, 62.5, 31.2), 72, _A10),
    (r"A10G", (70, 70, 35, 35), 80, _A10G + _UNREAD),
    (r"A2", (18, 18, 9, 4.5), 10, _A2),
    (r"L4", (121, 121, 60, 30.3), 58, _L4),
    (r"L40", (181.05, 181.05, 90.5, 90.5), 142, _L40),
    (r"L40S", (362.05, 362.05, 183, 91.6), 142, _L40S),
    (r"V100-SXM2-.*", (125, None, None, 15.7), 80, _V100),
    (r"V100-PCIE-.*", (112, None, None, 14), 80, _V100),
    (r"V100S-PCIE-.*", (130, None, None, 16.4), 80, _V100),
    (r"T4", (65, None, None, 8.1), 40, _T4),
    (r"P100-SXM2-.*", (21.2, None, None, 10.6), 56, _P100),
    (r"P100-PCIE-16GB", (18.7, None, None, 9.3), 56, _P100),
    (r"TITAN RTX", (130.5, None, None, 16.3), 72, _TURING),
    (r"GeForce RTX 2080 Ti", (53.8, None, None, 13.4), 68, _TURING),
    (r"GeForce RTX 3090", (71.2, 71.2, 35.6, 35.6), 82, _GA102),
    (r"GeForce RTX 3080", (59.5, 59.5, 29.8, 29.8), 68, _GA102 + _UNREAD),
    (r"GeForce RTX 3070", (40.6, 40.6, 20.3, 20.3), 46, _GA102 + _UNREAD),
    (r"RTX A6000", (154.8, 154.8, 77.4, 38.7), 84, _GA102),
    (r"RTX 6000 Ada Generation", (364.2, 364.2, 182.1, 91.1), 142, _ADA + _UNREAD),
    (r"GeForce RTX 4090", (165.2, 165.2, 82.6, 82.6), 128, _ADA),
    (r"GeForce RTX 4080", (97.5, 97.5, 48.7, 48.7), 76, _ADA + _UNREAD),
    (r"GeForce RTX 5090", (209.5, 209.5, 104.8, 104.8), 170, _BLACKWELL),
    (r"GeForce RTX 5080", (112.6, 112.6, 56.3, 56.3), 84, _BLACKWELL + _UNREAD),
)

# Operations of a multiprocessor per clock in fp16, bf16, TF32, fp32, and its CUDA cores, by compute
# capability.
_ARCHITECTURES: dict[str, tuple[tuple[int | None, ...], int]] = {
    "6.0": ((256, None, None, 128), 64),
    "6.1": ((None, None, None, 256), 128),
    "7.0": ((1024, None, None, 128), 64),
    "7.5": ((1024, None, None, 128), 64),
    "8.0": ((2048, 2048, 1024, 128), 64),
    "8.6": ((1024, 1024, 512, 256), 128),
    "8.9": ((1024, 1024, 512, 256), 128),
    "9.0": ((4096, 4096, 2048, 256), 128),
    "10.0": ((8192, 8192, 4096, 256), 128),
    "12.0": ((1024, 1024, 512, 256), 128),
}
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
