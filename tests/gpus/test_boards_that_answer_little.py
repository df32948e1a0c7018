"""GB10, Thor and virtual GPUs: what their driver does not say has a reason, and 0 for nothing is no number."""

import numpy as np
import pytest
from nvml import Scenario

LACKING = ("pcie*", "field:*", "gpm*", "ecc*")
BOARDS = {
    "GB10": ("h100", "NVIDIA GB10", ("memory_used", "memory_total", "power_limit*", "power_default*", *LACKING)),
    "Thor": ("h100", "NVIDIA Thor", ("memory*", "power*", "utilization", "temperature*", "clock*", *LACKING)),
    "vGPU": ("a100", "NVIDIA A100-8C", ("power*", "temperature*", "clock*", *LACKING)),
}
SOURCES = {
    "memory_used_bytes": "memory",
    "power_mw": "power",
    "temperature_c": "temperature",
    "sm_clock_mhz": "SM clock",
    "utilization_pct": "utilization",
    "power_limit_mw": "power limit",
    "ecc_corrected": "ECC errors",
}


@pytest.mark.parametrize("board", BOARDS)
def test_each_reading_is_there_or_has_a_reason(step, board):
    profile, name, lacking = BOARDS[board]
    scenario = Scenario()
    scenario.gpu(profile, name=name).without(*lacking)
    stepped = step(scenario)
    stepped.memory.modes["gpu0"] = "vGPU" if board == "vGPU" else ""
    rows, reasons = stepped.at(0, 0.2, 0.4)["gpu0"], stepped.reasons()
    for column, source in SOURCES.items():
        assert np.isnan(rows[column]).all() == (f"gpu0 {source}" in reasons), (column, reasons)
    assert "nvml" not in " ".join(reasons).lower()
    assert reasons["gpu0 GPM (SM active, occupancy, tensor cores)"].startswith("this GPU has no GPM, or its driver")
    if board == "vGPU":
        assert reasons["gpu0 power"].startswith("vGPU: not supported in this mode")


@pytest.mark.parametrize(
    ("column", "source", "quantity", "answer"),
    [
        ("power_mw", "power", "power_mw", 0),
        ("power_mw", "power", "power_mw", 0xFFFFFFFF),
        ("temperature_c", "temperature", "temperature:0", 0),
        ("temperature_c", "temperature", "temperature:0", 0xFFFFFFFF),
        ("sm_clock_mhz", "SM clock", "clock:1", 0),
        ("power_limit_mw", "power limit", "power_limit_mw", 0),
        ("memory_used_bytes", "memory", "memory_total", 0),
    ],
)
def test_a_number_that_no_gpu_has_is_no_reading(step, column, source, quantity, answer):
    scenario = Scenario()
    gpu = scenario.gpu("a100", name="GRID T4-8Q").curve("memory_used", 0).curve(quantity, answer)
    stepped = step(scenario)
    rows = stepped.at(0, 0.2, 0.4)["gpu0"]
    assert np.isnan(rows[column]).all()
    assert "impossible" in stepped.reasons()[f"gpu0 {source}"]
    assert gpu and stepped.gpu.facts["power_limit_mw"] in (None, 400_000)
