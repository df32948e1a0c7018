"""What is sampled is what the driver says, in its own unit; what it does not say, another source does or a reason."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from nvml import GIB, NOBODY, Gpu, Scenario

from gpu_util_callback.gpus._devices import driver_facts

NAN = math.nan
KIB, MIB = 1 << 10, 1 << 20
# How a driver does without a call: it does not have it, or refuses it whenever it is asked.
WAYS = {
    "absent": lambda scenario, symbol: scenario.without(symbol),
    "not supported": lambda scenario, symbol: scenario.call(symbol, code=3),
    "no permission": lambda scenario, symbol: scenario.call(symbol, code=4),
    "rejected": lambda scenario, symbol: scenario.call(symbol, code=2),
}
BATCH = "nvmlDeviceGetFieldValues"
EVENTS = "CurrentClocksEventReasons"
GPM = "gpu0 GPM (SM active, occupancy, tensor cores)"
COUNTED = "pcie_tx_bytes_per_s pcie_rx_bytes_per_s power_energy_mw nvlink_tx_bytes_per_s nvlink_rx_bytes_per_s"
COUNTERS = {f"gpu0 {column}": "" for column in (*COUNTED.split(), "memory_temperature_c")}


class Row(NamedTuple):
    """What a GPU does, the seconds at which it is asked, and what is read: group:column -> values.

    One value stands for all.

    reasons: all that is said to be unavailable, and how its reason begins.
    lacks: calls that the driver does without, in each of WAYS.
    """

    does: Callable[[Gpu, Scenario], Any]
    at: Sequence[float]
    reads: dict[str, Any]
    reasons: dict[str, str] = {}  # noqa: RUF012
    lacks: tuple[str, ...] = ()
    profile: str = "h100"


def healthy(gpu: Gpu, _: Scenario) -> None:
    gpu.curve("utilization", [(0, 90), (1, 20)]).curve("power_mw", [(0, 300_000), (2, 700_000)], "line")
    gpu.curve("clock:1", [(0, 1980), (1, 1200)]).curve("memory_used", 20 * GIB).curve("memory_reserved", GIB)
    gpu.curve("pcie_generation", 1).curve("ecc_volatile:1", [(0, 0), (5, 2)])
    gpu.process("self", 6 * GIB, sm=70).process(NOBODY, 2 * GIB, sm=20).process(NOBODY + 1, GIB, kind="graphics")
    gpu.counter(197, [(0, 1e9), (1, 3e9)]).counter(198, 5e9).counter(83, [(0, 400_000), (1, 600_000)])
    gpu.counter(138, 1000, scope=0xFFFFFFFF).counter(139, 2000, scope=0xFFFFFFFF)  # KiB
    gpu.counter(269, [(0, 0), (1, 0.25e9)]).counter(270, [(0, 0), (1, 0.05e9)])  # ns a second
    gpu.counter(74, 0.8e9).counter(271, 0.5e9).counter(76, 0.1e9)


def faulty(gpu: Gpu, driver: Scenario) -> None:
    """Each fault costs its own value only; drivers have answered all ones, and a percentage beyond 100."""
    gpu.curve("utilization", [(0, 60), (1, 65_535), (2, 5)]).curve("memory_utilization", 2**32 - 1)
    gpu.curve("gpm:3", 4_000_000)
    gpu.process("self", GIB).process(0, GIB).process(NOBODY, 2**60).process(NOBODY + 1, 5, sm=4000)
    gpu.process(NOBODY + 2, None)  # its memory is "not available"
    for symbol in ("nvmlDeviceGetSamples", "field:138", "field:139", "gpm:5"):
        driver.call(symbol, code=3)
    driver.call("field:83", code=4).call("gpm:10", code=21, until=1)


def old(gpu: Gpu, _: Scenario) -> None:
    gpu.curve("event_reasons", [(0, 0x1), (1, 0x4), (2, 0x20), (3, 0x8), (4, 0x8 | 0x40), (5, 0x2)])
    gpu.curve("pcie_throughput:0", 500_000).curve("pcie_throughput:1", 2_000_000)  # KiB a second
    gpu.curve("memory_used", 4 * GIB).curve("memory_reserved", GIB)
    gpu.process("self", 3 * GIB, sm=50).process(NOBODY, 2 * GIB, sm=10)


def nothing(gpu: Gpu, _: Scenario) -> None:
    pass


ROWS = {
    "a healthy GPU": Row(
        healthy,
        (0, 0.5, 1, 2, 5, 10.5),
        {
            "t": [0, 0.5, 1, 2, 5, 10.5],
            "utilization_pct": [90, 90, 20, 20, 20, 20],
            "power_mw": [300_000, 400_000, 500_000, 700_000, 700_000, 700_000],
            "sm_clock_mhz": [1980, 1980, 1200, 1200, 1200, 1200],
            "temperature_c": 60,
            "memory_used_bytes": 20 * GIB,
            "memory_reserved_bytes": GIB,
            "memory_process_bytes": [6 * GIB, NAN, *[6 * GIB] * 4],  # asked once a second
            "memory_other_bytes": [3 * GIB, NAN, *[3 * GIB] * 4],
            "processes_other": [2, NAN, 2, 2, 2, 2],
            "utilization_process_pct": [70, NAN, 70, 70, 70, 70],
            "utilization_other_pct": [20, NAN, 20, 20, 20, 20],
            "power_limit_mw": [700_000, NAN, NAN, NAN, NAN, 700_000],  # now and then
            "pcie_generation": [1, NAN, NAN, NAN, NAN, 1],
            "ecc_uncorrected": [0, NAN, NAN, NAN, NAN, 2],
            "pcie_tx_bytes_per_s": [NAN, 1e9, 1e9, 3e9, 3e9, 3e9],  # one reading is no rate
            "pcie_rx_bytes_per_s": [NAN, 5e9, 5e9, 5e9, 5e9, 5e9],
            "power_energy_mw": [NAN, NAN, 4e5, 6e5, 6e5, 6e5],  # once a second: it takes an H200's driver 3 ms
            "nvlink_tx_bytes_per_s": [NAN, NAN, *[1000 * KIB] * 4],
            "nvlink_rx_bytes_per_s": [NAN, NAN, *[2000 * KIB] * 4],
            "throttle_thermal_pct": [NAN, NAN, 0, 30, 30, 30],
            "throttle_power_pct": [NAN, NAN, 100, 100, 100, 100],  # both causes at once: the whole time
            "throttle_other_pct": [NAN, NAN, 10, 10, 10, 10],
        },
    ),
    "a GPU of many faults": Row(
        faulty,
        np.arange(0, 3, 0.2),
        {
            "utilization_pct": [60] * 5 + [NAN] * 5 + [5] * 5,
            "utilization:utilization_pct": [60] * 5 + [5] * 5,  # polled, in place of the driver's own samples
            "memory_utilization_pct": NAN,
            "memory_process_bytes": [GIB, *[NAN] * 4] * 3,
            "memory_other_bytes": NAN,
            "processes_other": [2, *[NAN] * 4] * 3,
            "utilization_other_pct": NAN,
            "power_energy_mw": NAN,
            "nvlink_tx_bytes_per_s": NAN,
            "pcie_rx_bytes_per_s": [NAN, *[4e9] * 14],
            "gpm:tensor_active_pct": NAN,
            "gpm:sm_occupancy_pct": NAN,
            "gpm:sm_active_pct": 80,
            "gpm:dram_active_pct": [NAN] * 4 + [50] * 10,
        },
        {
            "gpu0 power_energy_mw": "no permission",
            "gpu0 utilization buffer": "not supported",
            "gpu0 tensor_active_pct (GPM)": "not supported",
        },
    ),
    "a passing failure of the newer call for memory, after which used would mean another thing": Row(
        lambda gpu, driver: driver.call("nvmlDeviceGetMemoryInfo_v2", code=999, from_=0.1, until=0.2),
        (0, 0.1, 0.3),
        {"memory_used_bytes": [20 * GIB, NAN, NAN]},
    ),
    "unified memory": Row(
        lambda gpu, _: gpu.without("memory_total"),
        (0, 0.1),
        {"memory_used_bytes": NAN},
        {"gpu0 memory": "not supported"},
    ),
    "a counter that begins again, and a size that no memory has": Row(
        lambda gpu, _: gpu.curve("field:83:0", [(0, 9e12), (1, 9.0000005e12), (2, 10)]).curve("memory_total", 2**63),
        (0, 1, 2),
        {"power_energy_mw": [NAN, 500_000, NAN], "facts:memory_total_bytes": None},
    ),
    "GPM of a driver that is too old": Row(
        lambda gpu, driver: driver.without("nvmlGpmQueryDeviceSupport"),
        (0, 0.2),
        {"gpm:": None},
        {GPM: "the installed driver is too old"},
    ),
    "GPM that is not permitted": Row(
        lambda gpu, driver: driver.call("nvmlGpmSampleGet", code=4),
        (0, 0.2, 0.4),
        {"gpm:": None},
        {GPM: "no permission"},
    ),
    "PCIe traffic without its counters": Row(
        lambda gpu, driver: (old(gpu, driver), driver.call("field:197", code=3).call("field:198", code=3)),
        (0, 1),
        {"pcie_rx_bytes_per_s": 2_000_000 * KIB, "power_energy_mw": [NAN, 500_000], "gpm:": None},
        {GPM: "this GPU has no GPM"},
        profile="a100",
    ),
    "a driver of older calls": Row(
        old,
        (0, 0.3, 1, 2, 3, 4, 5),
        {
            "throttle_power_pct": [0, 0, 100, 0, 0, 0, 0],
            "throttle_thermal_pct": [0, 0, 0, 100, 0, 100, 0],
            "throttle_other_pct": [0, 0, 0, 0, 100, 0, 0],  # idle and 0x2 are none
            "event_reasons": [1, 1, 4, 0x20, 8, 0x48, 2],
            "pcie_tx_bytes_per_s": [500_000 * KIB, NAN, *[500_000 * KIB] * 5],  # an answer takes 20 ms
            "pcie_rx_bytes_per_s": [2_000_000 * KIB, NAN, *[2_000_000 * KIB] * 5],
            "temperature_c": 60,
        },
        # What nothing stands in for is named.
        {source: "" for source in COUNTERS if "pcie" not in source} | {GPM: "this GPU has no GPM"},
        (BATCH, *(f"nvmlDeviceGet{name}" for name in ("TemperatureV", EVENTS))),
        "t4",
    ),
    "a driver without older calls, and without counters": Row(
        nothing,
        (0, 1),
        {
            "throttle_thermal_pct": NAN,
            "gpm:pcie_rx_bytes_per_s": 4000 * MIB,
            "memory_used_bytes": 20 * GIB,
            "facts:memory_total_bytes": 80 * GIB,
        },
        COUNTERS | {"gpu0 clock event reasons": ""},
        (BATCH, *(f"nvmlDeviceGet{name}" for name in ("MemoryInfo", EVENTS, "CurrentClocksThrottleReasons"))),
    ),
}


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, row in ROWS.items() for way in (WAYS if row.lacks else ["whole"])]
)
def test_what_is_read_of_a_driver(step, name, way):
    row, scenario = ROWS[name], Scenario()
    for symbol in row.lacks:
        WAYS[way](scenario, symbol)
    row.does(scenario.gpu(row.profile), scenario)
    stepped = step(scenario)
    rows = stepped.at(*row.at)
    assert driver_facts(stepped.gate)["cuda_version"] == "13.0"
    for place, values in row.reads.items():
        group, _, column = place.rpartition(":")
        if group == "facts":
            assert stepped.gpu.facts[column] == values
            continue
        if not column:
            assert f"gpu0/{group}" not in rows
            continue
        found = rows[f"gpu0/{group}" if group else "gpu0"][column]
        np.testing.assert_allclose(found, np.broadcast_to(values, found.shape), rtol=1e-3, atol=1e-3, err_msg=place)
    reasons = stepped.reasons()
    assert all(reasons[source].startswith(reason) for source, reason in row.reasons.items())
    assert stepped.library.calls(BATCH) <= 2 or BATCH not in row.lacks  # once for power alone, before the rest
    assert reasons.keys() == row.reasons.keys()
