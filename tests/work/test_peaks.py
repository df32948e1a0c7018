"""A GPU's peak is dense, in the right precision, and has a source."""

from __future__ import annotations

import re

import pytest

from gpu_util_callback.gpus.peaks import _ARCHITECTURES, _TABLE, PRECISIONS, peak_of


def gpu(name: str, capability: str, **facts) -> dict:
    return {"name": name, "compute_capability": capability, **facts}


H100 = gpu("NVIDIA H100 80GB HBM3", "9.0", sm_clock_max_mhz=1980, cores=16896)


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),  # 1,979 with sparsity
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA A100-SXM4-40GB", "fp16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA A10G", "bf16", 70),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-SXM2-16GB", "tf32", 15.7),  # has none: float32 is float32 there
        ("Tesla T4", "fp16", 65),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),  # summed in float32; 330 in float16
        ("NVIDIA GeForce RTX 3090", "fp16", 71.2),
    ],
)
def test_data_sheets(name, precision, tflops):
    peak, _ = peak_of(gpu(name, "?"), precision)
    assert peak["tflops"] == tflops
    assert peak["source"].startswith("https://") and "derived" not in peak


@pytest.mark.parametrize(
    ("one", "precision", "reason"),
    [
        (gpu("Tesla T4", "7.5"), "bf16", "T4 has no tensor cores for bf16"),
        (gpu("Some Accelerator", "9.9"), "bf16", "the peak of Some Accelerator is not known"),
        (gpu("", ""), "bf16", "the peak of this GPU is not known"),
        (gpu("NVIDIA H20", "9.0", cores=9984, sm_clock_max_mhz=1980), "bf16", "not known"),
        (gpu("NVIDIA GeForce RTX 4070", "8.9", cores=5888), "bf16", "clock"),
        (H100, "fp64", "no peak is known for fp64"),
        (gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0", mig=True), "bf16", "MIG device"),
    ],
)
def test_no_number_without_a_ground(one, precision, reason):
    peak, why = peak_of(one, precision)
    assert peak is None and reason in why


def test_a_mig_device_has_its_multiprocessors_share():
    one = gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "8.0", mig=True, multiprocessors=42)
    peak, _ = peak_of(one, "bf16")
    assert peak["tflops"] == pytest.approx(312 * 42 / 108, abs=0.1)
    assert "42 of 108 multiprocessors" in peak["derived"]


def test_a_gpu_on_no_list_is_derived_and_says_how():
    one = gpu("NVIDIA GeForce RTX 4070", "8.9", cores=5888, sm_clock_max_mhz=2475)
    peak, _ = peak_of(one, "bf16")
    assert peak["tflops"] == pytest.approx(46 * 512 * 2475 / 1e6, abs=0.1)  # half of a workstation's
    assert peak["derived"] == "46 multiprocessors × 512 FLOPs per clock × 2475 MHz at most"
    assert "source" not in peak
    single, _ = peak_of(one, "fp32")
    assert single["tflops"] == pytest.approx(46 * 256 * 2475 / 1e6, abs=0.1)


@pytest.mark.parametrize(
    ("capability", "cores", "clock", "fp16"),
    [("7.5", 68 * 64, 1545, 53.8), ("8.6", 46 * 128, 1725, 40.6), ("12.0", 84 * 128, 2617, 112.6)],
)
def test_a_geforce_on_no_list_has_half_the_rate_in_every_generation(capability, cores, clock, fp16):
    """As the RTX 2080 Ti, RTX 3070 and RTX 5080, which are on it."""
    one = gpu("NVIDIA GeForce RTX 0000", capability, cores=cores, sm_clock_max_mhz=clock)
    peak, _ = peak_of(one, "fp16")
    assert peak["tflops"] == pytest.approx(fp16, rel=0.01)


# Of GPUs in the table: compute capability, and the boost clock in MHz that its figures are for.
BOOST = {
    "H100 80GB HBM3": ("9.0", 1830),
    "H100 PCIe": ("9.0", 1620),
    "A100-SXM4-40GB": ("8.0", 1410),
    "A30": ("8.0", 1440),
    "A40": ("8.6", 1740),
    "A10": ("8.6", 1695),
    "L4": ("8.9", 2040),
    "L40S": ("8.9", 2520),
    "V100-SXM2-16GB": ("7.0", 1530),
    "V100-PCIE-16GB": ("7.0", 1380),
    "V100S-PCIE-32GB": ("7.0", 1597),
    "T4": ("7.5", 1590),
    "A2": ("8.6", 1770),
    "RTX A6000": ("8.6", 1800),
    "RTX 6000 Ada Generation": ("8.9", 2505),
    "TITAN RTX": ("7.5", 1770),
    "GeForce RTX 2080 Ti": ("7.5", 1545),
    "GeForce RTX 3090": ("8.6", 1695),
    "GeForce RTX 3080": ("8.6", 1710),
    "GeForce RTX 3070": ("8.6", 1725),
    "GeForce RTX 4090": ("8.9", 2520),
    "GeForce RTX 4080": ("8.9", 2505),
    "GeForce RTX 5090": ("12.0", 2407),
    "GeForce RTX 5080": ("12.0", 2617),
    "B200": ("10.0", 1850),
    "GH200 480GB": ("9.0", 1830),
    "H200": ("9.0", 1830),
    "P100-SXM2-16GB": ("6.0", 1480),
    "P100-PCIE-16GB": ("6.0", 1303),
}


@pytest.mark.parametrize("name", BOOST)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_data_sheets_are_what_the_architecture_does_at_the_boost_clock(name, precision):
    """A figure with sparsity, or summed in 16 bits, would be twice that; some clock fp32 higher."""
    capability, mhz = BOOST[name]
    table = next(row for row in _TABLE if re.fullmatch(row[0], name))
    place = PRECISIONS.index(precision)
    rate = _ARCHITECTURES[capability][0][place]
    if "GeForce" in name and precision == "fp16":
        rate //= 2
    assert table[1][place] == pytest.approx(table[2] * rate * mhz / 1e6, rel=0.1)
