"""What is sampled is what the driver says, with its own time and in its own unit."""

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from nvml import GIB, NOBODY, Scenario
from waiting import wait_until

from gpu_util_callback.gpus._reader import origin_ns


def column(rows, group, name):
    """The values of a column that are there."""
    values = rows[group][name]
    return values[~np.isnan(values)]


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


def test_what_our_own_workers_use_is_ours(step):
    """A spawned worker, or Grain's, may open the GPU; its children are ours, too."""
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as worker:
        children = wait_until(psutil.Process(worker.pid).children, 20)
        scenario = Scenario()
        gpu = scenario.gpu("h100").process("self", GIB, sm=10).process(NOBODY, 2 * GIB, sm=20)
        gpu.process(worker.pid, GIB, sm=5).process(children[0].pid, GIB, sm=30)
        row = {name: values[0] for name, values in step(scenario).at(0)["gpu0"].items()}
        worker.communicate(b"\n")
    assert (row["memory_process_bytes"], row["memory_other_bytes"]) == (3 * GIB, 2 * GIB)
    assert row["processes_other"] == 1
    assert (row["utilization_process_pct"], row["utilization_other_pct"]) == (45, 20)


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


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("NVIDIA GB10", 120 * GIB),
        ("NVIDIA Thor", 122 * GIB),
        ("NVIDIA GH200 480GB", "machine"),
        ("Orin (nvgpu)", 60 * GIB),
    ],
)
def test_the_memory_of_the_machine_is_not_a_gpus(step, name, total):
    total = psutil.virtual_memory().total if total == "machine" else total
    scenario = Scenario()
    gpu = scenario.gpu("h100", name=name).curve("memory_total", total).curve("memory_used", total * 0.93)
    gpu.process("self", GIB)
    stepped = step(scenario)
    row = stepped.at(0)["gpu0"]
    assert np.isnan(row["memory_used_bytes"]).all() and row["memory_process_bytes"][0] == GIB
    assert "shares the machine's memory" in stepped.reasons()["gpu0 memory"]


def test_a_gpu_with_memory_of_its_own_has_it_counted(step):
    scenario = Scenario()
    scenario.gpu("h100", name="NVIDIA GH200 480GB").curve("memory_total", 96 * GIB).curve("memory_used", 9 * GIB)
    assert step(scenario).at(0)["gpu0"]["memory_used_bytes"][0] == 9 * GIB
