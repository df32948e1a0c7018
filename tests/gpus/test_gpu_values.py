"""What is sampled is what the driver says, with its own time and in its own unit."""

import math
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from nvml import GIB, Scenario
from waiting import wait_until

from gpu_util_callback.gpus._reader import origin_ns


def column(rows, group, name):
    """The values of a column that are there."""
    values = rows[group][name]
    return values[~np.isnan(values)]


def test_gauges_follow_their_curves(step):
    scenario = Scenario()
    scenario.gpu("h100").curve("utilization", [(0, 90), (1, 20)]).curve(
        "power_mw", [(0, 300_000), (2, 700_000)], "line"
    ).curve("clock:1", [(0, 1980), (1, 1200)])
    rows = step(scenario).at(0, 0.5, 1, 1.5)["gpu0"]
    assert rows["utilization_pct"].tolist() == [90, 90, 20, 20]
    assert rows["power_mw"].tolist() == [300_000, 400_000, 500_000, 600_000]
    assert rows["sm_clock_mhz"].tolist() == [1980, 1980, 1200, 1200]
    assert rows["temperature_c"].tolist() == [60] * 4
    np.testing.assert_allclose(rows["t"], [0, 0.5, 1, 1.5], atol=1e-3)


def test_memory_tells_the_reserved_part_apart(step):
    scenario = Scenario()
    scenario.gpu("h100").curve("memory_used", 20 * GIB).curve("memory_reserved", GIB)
    row = step(scenario).at(0)["gpu0"]
    assert (row["memory_used_bytes"][0], row["memory_reserved_bytes"][0]) == (20 * GIB, GIB)


def test_a_passing_failure_of_v2_does_not_change_what_used_means(step):
    scenario = Scenario().call("nvmlDeviceGetMemoryInfo_v2", code=999, from_=0.1, until=0.2)
    scenario.gpu("h100").curve("memory_used", 20 * GIB).curve("memory_reserved", GIB)
    used = step(scenario).at(0, 0.1, 0.3)["gpu0"]["memory_used_bytes"]
    assert used[0] == 20 * GIB
    assert math.isnan(used[1])


def test_unified_memory_has_none_and_says_so(step):
    scenario = Scenario()
    scenario.gpu("h100").without("memory_total")
    stepped = step(scenario)
    assert np.isnan(stepped.at(0, 0.1)["gpu0"]["memory_used_bytes"]).all()
    assert stepped.reasons()["gpu0 memory"].startswith("not supported")


def test_the_driver_s_own_samples_keep_their_times(step):
    scenario = Scenario(samples_period_ms=100)
    scenario.gpu("h100").curve("utilization", [(0, 10), (0.95, 80)])
    stepped = step(scenario)
    buffered = stepped.at(0, 0.5, 1.0, 2.0)["gpu0/utilization"]
    np.testing.assert_allclose(buffered["t"], np.arange(0, 2.01, 0.1), atol=2e-6)
    assert buffered["utilization_pct"].tolist() == [10] * 10 + [80] * 11
    assert (buffered["memory_utilization_pct"] == 40).all()


def test_samples_from_before_the_start_are_not_this_recording_s(step):
    scenario = Scenario("h100", samples_period_ms=100, start_us=1_700_000_000_000_000)
    scenario.options["time"] = "manual"
    stepped = step(scenario)
    stepped.library.set_time(5)
    stepped.reader._open()  # a fit that begins at second 5; the ring still holds older samples
    assert stepped.at(6)["gpu0/utilization"]["t"].min() >= 5


def test_a_dry_buffer_is_filled_by_polling(step):
    scenario = Scenario(samples_period_ms=100, samples_idle="dry")
    scenario.gpu("h100").curve("utilization", [(0, 60), (1, 0)]).curve("memory_utilization", 0)
    stepped = step(scenario)
    buffered = stepped.at(*np.arange(0, 6.01, 0.5))["gpu0/utilization"]
    busy, idle = buffered["t"] < 1, buffered["t"] > 1.2
    assert idle.sum() >= 9
    assert (buffered["utilization_pct"][busy] == 60).all()
    assert busy.sum() == 10
    assert (buffered["utilization_pct"][idle] == 0).all()
    assert not stepped.reasons().get("gpu0 utilization buffer")


def test_gpus_without_a_sample_buffer_are_polled(step):
    scenario = Scenario().call("nvmlDeviceGetSamples", code=3)
    scenario.gpu("h100").curve("utilization", [(0, 60), (3, 5)])
    stepped = step(scenario)
    rows = stepped.at(*np.arange(0, 5, 0.5))
    assert rows["gpu0"]["utilization_pct"].tolist() == [60] * 6 + [5] * 4
    assert set(rows["gpu0/utilization"]["utilization_pct"]) == {60, 5}
    assert "gpu0 utilization buffer" in stepped.reasons()


def test_illegal_percentages_of_the_buffer_are_rejected(step):
    scenario = Scenario()
    scenario.gpu("h100").curve("samples:1", [(0.1, 50), (0.2, 4_000_000), (0.3, 100)], "list")
    stepped = step(scenario)
    buffered = stepped.at(0, 1)["gpu0/utilization"]
    assert column({"b": buffered}, "b", "utilization_pct").tolist() == [50, 100]


def test_stamps_since_boot_are_recognised(step):
    # On the wall clock: the clock of boot cannot be moved by hand.
    scenario = Scenario("h100", samples_clock="boot", samples_period_ms=100, time="wall")
    stepped = step(scenario)
    time.sleep(0.35)
    stepped.reader.read(0)
    buffered = stepped.drain()["gpu0/utilization"]
    assert len(buffered["t"]) >= 3
    assert (np.abs(buffered["t"] - stepped.library.time) < 0.6).all()


@pytest.mark.parametrize("origin", ["epoch", "boot", "opaque"])
def test_the_origin_of_stamps_is_found(origin):
    now = {
        "epoch": time.time_ns(),
        "boot": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "opaque": 123_456_789_000 + time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 7,
    }[origin]
    stamp_us = now // 1000 - (200_000 if origin != "opaque" else 0)
    converted = stamp_us * 1000 + origin_ns(stamp_us)
    assert abs(converted - time.time_ns()) < 0.25e9


def test_rates_come_from_cumulative_counters(step):
    scenario = Scenario()
    scenario.gpu("h100").counter(197, [(0, 1e9), (1, 3e9)]).counter(198, 5e9).counter(83, [(0, 400_000), (1, 600_000)])
    rows = step(scenario).at(0, 0.5, 1, 2)["gpu0"]
    assert math.isnan(rows["pcie_tx_bytes_per_s"][0])  # one reading is no rate
    np.testing.assert_allclose(rows["pcie_tx_bytes_per_s"][1:], [1e9, 1e9, 3e9], rtol=1e-5)
    np.testing.assert_allclose(rows["pcie_rx_bytes_per_s"][1:], 5e9, rtol=1e-5)
    # Asked once a second: its answer takes the driver of an H200 3 ms.
    np.testing.assert_allclose(rows["power_energy_mw"], [math.nan, math.nan, 4e5, 6e5], rtol=1e-5)


def test_a_wrapping_pcie_counter_is_unwrapped(step):
    scenario = Scenario()
    scenario.gpu("a100").counter(197, 10e9, wrap=2**32).counter(198, 1e9, wrap=2**32)
    rows = step(scenario).at(*np.arange(0, 5, 0.1))["gpu0"]
    for name, rate in (("pcie_tx_bytes_per_s", 10e9), ("pcie_rx_bytes_per_s", 1e9)):
        there = column({"a": rows}, "a", name)
        np.testing.assert_allclose(there, rate, rtol=1e-4)
        assert len(there) >= 40  # read at every tick from the first wrap on


def test_a_counter_that_may_have_wrapped_twice_is_no_value(step):
    scenario = Scenario()
    scenario.gpu("a100").counter(197, 10e9, wrap=2**32)
    values = step(scenario).at(0, 0.2, 0.3, 0.5, 1.5, 2.5)["gpu0"]["pcie_tx_bytes_per_s"]
    right = np.isclose(values, 10e9, rtol=1e-3)
    assert right[1]
    assert (right | np.isnan(values)).all()
    assert np.isnan(values[-1])


def test_a_counter_that_began_anew_is_no_rate(step):
    scenario = Scenario()
    scenario.gpu("h100").curve("field:83:0", [(0, 9e12), (1, 9.0000005e12), (2, 10)])
    power = step(scenario).at(0, 1, 2)["gpu0"]["power_energy_mw"]
    assert power[1] == pytest.approx(500_000)
    assert math.isnan(power[2])


def test_throttling_is_a_share_of_time_by_cause(step):
    scenario = Scenario()
    gpu = scenario.gpu("h100")
    gpu.counter(269, [(0, 0), (1, 0.25e9)]).counter(270, [(0, 0), (1, 0.05e9)])  # ns a second
    gpu.counter(74, 0.8e9).counter(271, 0.5e9).counter(76, 0.1e9)
    rows = step(scenario).at(0, 1, 2)["gpu0"]
    np.testing.assert_allclose(rows["throttle_thermal_pct"][1:], [0, 30], atol=0.1)
    np.testing.assert_allclose(rows["throttle_power_pct"][1:], 100)  # both at once: the whole time
    np.testing.assert_allclose(rows["throttle_other_pct"][1:], 10, atol=0.1)


def test_one_field_missing_costs_only_that_field(step):
    scenario = Scenario("h100").call("field:83", code=4)
    stepped = step(scenario)
    rows = stepped.at(0, 1, 2)["gpu0"]
    assert np.isnan(rows["power_energy_mw"]).all()
    np.testing.assert_allclose(rows["pcie_rx_bytes_per_s"][1:], 4e9, rtol=1e-5)
    assert stepped.reasons()["gpu0 power_energy_mw"] == "no permission"


def test_a_gpu_without_nvlink_misses_nothing(step):
    scenario = Scenario().call("field:138", code=3).call("field:139", code=3)
    scenario.gpu("h100")
    stepped = step(scenario)
    assert np.isnan(stepped.at(0, 1, 2)["gpu0"]["nvlink_tx_bytes_per_s"]).all()
    assert not [source for source in stepped.reasons() if "nvlink" in source]


def test_nvlink_counts_kib(step):
    scenario = Scenario()
    gpu = scenario.gpu("h100")
    gpu.counter(138, 1000, scope=0xFFFFFFFF).counter(139, 2000, scope=0xFFFFFFFF)
    rows = step(scenario).at(0, 1)["gpu0"]
    assert rows["nvlink_tx_bytes_per_s"][1] == pytest.approx(1000 * 1024)
    assert rows["nvlink_rx_bytes_per_s"][1] == pytest.approx(2000 * 1024)


def test_gpm_is_chained_and_in_our_units(step):
    scenario = Scenario()
    gpu = scenario.gpu("h100").curve("gpm:2", [(0, 10), (1, 70)]).curve("gpm:20", 3)
    gpu.curve("gpm:60", 5)
    stepped = step(scenario)
    rows = stepped.at(*np.arange(0, 2.01, 0.2))
    gpm = rows["gpu0/gpm"]
    assert len(gpm["t"]) == 10  # the first sample has nothing to compare with
    np.testing.assert_allclose(gpm["sm_active_pct"], [10] * 5 + [70] * 5, atol=1e-6)
    np.testing.assert_allclose(gpm["pcie_tx_bytes_per_s"], 3 * 2**20)  # the driver says MiB/s
    np.testing.assert_allclose(gpm["nvlink_rx_bytes_per_s"], 5 * 2**20)
    assert stepped.library.gpm_samples == 2
    assert stepped.library.calls("nvmlGpmSampleGet") == 11  # one call a tick, no waiting
    stepped.reader.close()
    assert stepped.library.gpm_samples == 0


def test_gpm_samples_too_close_are_not_compared(step):
    scenario = Scenario("h100")
    stepped = step(scenario)
    stepped.reader._gpm.read()
    for t in (0.02, 0.05, 0.10):
        stepped.library.set_time(t)
        stepped.reader._gpm.read()
    assert "gpu0/gpm" not in stepped.drain()
    stepped.library.set_time(0.12)
    stepped.reader._gpm.read()
    assert len(stepped.drain()["gpu0/gpm"]["t"]) == 1


def test_gpm_warm_up_is_a_gap_and_no_failure(step):
    scenario = Scenario("h100").call("nvmlGpmMetricsGet", code=21, until=1)
    stepped = step(scenario)
    gpm = stepped.at(*np.arange(0, 2, 0.2))["gpu0/gpm"]
    assert gpm["t"].min() >= 1
    assert not [source for source in stepped.reasons() if "GPM" in source]


def test_gpm_metrics_are_dropped_one_by_one(step):
    scenario = Scenario().call("gpm:5", code=3).call("gpm:10", code=21, until=1)
    scenario.gpu("h100").curve("gpm:3", 4_000_000)  # garbage
    stepped = step(scenario)
    gpm = stepped.at(*np.arange(0, 2, 0.2))["gpu0/gpm"]
    assert np.isnan(gpm["tensor_active_pct"]).all()
    assert np.isnan(gpm["sm_occupancy_pct"]).all()
    np.testing.assert_allclose(gpm["sm_active_pct"], 80)
    assert np.isnan(gpm["dram_active_pct"][gpm["t"] < 0.99]).all()
    np.testing.assert_allclose(gpm["dram_active_pct"][gpm["t"] > 1.01], 50)
    assert "gpu0 tensor_active_pct (GPM)" in stepped.reasons()


@pytest.mark.parametrize("how", ["asked", "old driver", "no permission"])
def test_gpm_is_absent_elsewhere_with_a_reason(step, how):
    scenario = Scenario()
    if how == "old driver":
        scenario.without("nvmlGpmQueryDeviceSupport")
    if how == "no permission":
        scenario.call("nvmlGpmSampleGet", code=4)
    scenario.gpu("a100" if how == "asked" else "h100")
    stepped = step(scenario)
    assert "gpu0/gpm" not in stepped.at(0, 0.2, 0.4)
    reason = next(r for source, r in stepped.reasons().items() if "GPM" in source)
    assert {"asked": "Hopper", "old driver": "too old", "no permission": "permission"}[how] in reason


def test_memory_by_process(step):
    scenario = Scenario()
    scenario.gpu("h100").process("self", 6 * GIB, sm=70).process(4242, 2 * GIB, sm=20).process(
        4243, GIB, kind="graphics"
    )
    row = {name: values[0] for name, values in step(scenario).at(0)["gpu0"].items()}
    assert row["memory_process_bytes"] == 6 * GIB
    assert row["memory_other_bytes"] == 3 * GIB
    assert row["processes_other"] == 2
    assert (row["utilization_process_pct"], row["utilization_other_pct"]) == (70, 20)


def test_what_our_own_workers_use_is_ours(step):
    """A spawned worker, or Grain's, may open the GPU; its children are ours, too."""
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as worker:
        children = wait_until(psutil.Process(worker.pid).children, 20)
        scenario = Scenario()
        gpu = scenario.gpu("h100").process("self", GIB, sm=10).process(4242, 2 * GIB, sm=20)
        gpu.process(worker.pid, GIB, sm=5).process(children[0].pid, GIB, sm=30)
        row = {name: values[0] for name, values in step(scenario).at(0)["gpu0"].items()}
        worker.communicate(b"\n")
    assert (row["memory_process_bytes"], row["memory_other_bytes"]) == (3 * GIB, 2 * GIB)
    assert row["processes_other"] == 1
    assert (row["utilization_process_pct"], row["utilization_other_pct"]) == (45, 20)


def test_processes_are_asked_once_a_second(step):
    scenario = Scenario()
    scenario.gpu("h100").process("self", GIB)
    stepped = step(scenario)
    values = stepped.at(*np.arange(0, 3, 0.1))["gpu0"]["memory_process_bytes"]
    assert 3 <= (~np.isnan(values)).sum() <= 4
    assert stepped.library.calls("nvmlDeviceGetComputeRunningProcesses_v3") <= 8


def test_bogus_process_records_are_rejected(step):
    scenario = Scenario()
    gpu = scenario.gpu("h100").process("self", GIB).process(0, GIB).process(7, 2**60)
    gpu.process(8, None).process(9, 5, sm=4000)
    row = step(scenario).at(0)["gpu0"]
    assert row["memory_process_bytes"][0] == GIB
    assert math.isnan(row["memory_other_bytes"][0])  # one process's memory is "not available"
    assert row["processes_other"][0] == 2
    assert math.isnan(row["utilization_other_pct"][0])


def test_mig_measures_its_own_memory_and_gpm_and_no_utilization(step):
    scenario = Scenario()
    board = scenario.gpu("h100")
    mig = scenario.mig(board, gi=3, ci=0)
    mig.curve("memory_used", 3 * GIB).curve("gpm_supported", 1).curve("gpm:2", 66)
    mig.process("self", 2 * GIB, gi=3, ci=0)
    stepped = step(scenario, mig=0)
    stepped.memory.modes["gpu0"] = "MIG"
    rows = stepped.at(*np.arange(0, 1.01, 0.2))
    assert np.isnan(rows["gpu0"]["utilization_pct"]).all()
    assert (rows["gpu0"]["memory_used_bytes"] == 3 * GIB).all()
    assert (rows["gpu0"]["power_mw"] == 500_000).all()  # its board's
    assert rows["gpu0"]["memory_process_bytes"][0] == 2 * GIB
    np.testing.assert_allclose(rows["gpu0/gpm"]["sm_active_pct"], 66)
    assert "gpu0/utilization" not in rows
    assert stepped.reasons()["gpu0 utilization"].startswith("MIG")


def test_limits_link_and_ecc_are_read_now_and_then(step):
    scenario = Scenario()
    scenario.gpu("h100").curve("pcie_generation", 1).curve("ecc_volatile:1", [(0, 0), (5, 2)])
    rows = step(scenario).at(0, 0.5, 5, 10.5)["gpu0"]
    assert rows["power_limit_mw"].tolist()[0::3] == [700_000, 700_000]
    assert rows["pcie_generation"][0] == 1
    assert rows["ecc_uncorrected"].tolist()[0::3] == [0, 2]
    assert np.isnan(rows["power_limit_mw"][1:3]).all()


def test_numbers_that_no_gpu_has_are_unknown(step):
    """Drivers have answered all ones, and a percentage beyond 100."""
    scenario = Scenario()
    gpu = scenario.gpu("h100").curve("memory_total", 2**63).curve("memory_used", 2**62)
    gpu.curve("utilization", [(0, 90), (1, 65_535)]).curve("memory_utilization", 2**32 - 1)
    stepped = step(scenario)
    assert stepped.gpu.facts["memory_total_bytes"] is None
    assert stepped.gpu.facts["power_limit_mw"] == 700_000
    rows = stepped.at(0, 1)["gpu0"]
    assert rows["utilization_pct"][0] == 90 and np.isnan(rows["utilization_pct"][1])
    assert np.isnan(rows["memory_utilization_pct"]).all()


def test_memory_of_a_driver_without_v2_has_no_reserved_part(step):
    scenario = Scenario().without("nvmlDeviceGetMemoryInfo_v2")
    scenario.gpu("h100").curve("memory_used", 20 * GIB).curve("memory_reserved", GIB)
    stepped = step(scenario)
    row = stepped.at(0, 0.1)["gpu0"]
    assert row["memory_used_bytes"].tolist() == [21 * GIB] * 2  # v1 counts it as used
    assert np.isnan(row["memory_reserved_bytes"]).all()
    assert not [source for source in stepped.reasons() if "memory" in source.split()]
