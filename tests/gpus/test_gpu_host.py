"""The host's side, the sampler's pace, and its own cost."""

import os
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import psutil
import pytest
from nvml import Scenario
from waiting import wait_until

from gpu_util_callback.gpus import Sampler, _devices, _host
from gpu_util_callback.gpus._gate import Memory
from gpu_util_callback.gpus._host import Host, host_facts
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.gpus.sampler import RateController
from gpu_util_callback.recording.clock import Clock


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(_host, "_TOO_SOON_S", 0.0)
    store = Store()
    memory = Memory()
    return Host(store, Clock(), memory), store, memory


def rows(store):
    (block,) = store.drain()
    return dict(zip(block.columns, block.values.T, strict=True))


@pytest.mark.real_clock("CPU time as a share of real time")
def test_this_process_s_cpu_is_in_percent_of_one_core(host):
    sampled, store, _ = host
    sampled.read()
    began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began[1] < 0.5:
        sum(range(1000))
    truth = 100 * (time.process_time() - began[0]) / (time.perf_counter() - began[1])
    sampled.read()
    row = rows(store)
    assert row["process_cpu_pct"][0] == pytest.approx(truth, abs=8)
    assert 0 < row["cpu_pct"][0] <= 100
    assert row["cpu_max_pct"][0] >= row["cpu_pct"][0]
    assert row["process_memory_bytes"][0] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    total = psutil.virtual_memory().total
    assert row["memory_used_bytes"][0] + row["memory_available_bytes"][0] == pytest.approx(total)


SPIN = """
import sys, time
until = time.process_time() + float(sys.argv[1])
while time.process_time() < until:
    pass
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.real_clock("CPU time as a share of real time")
def test_children_s_cpu_is_in_percent_of_one_core(host, monkeypatch):
    monkeypatch.setattr(_host, "_CORES_S", 0.0)
    monkeypatch.setattr(_host, "_SELDOM_SHARE", 1e9)
    sampled, store, _ = host
    sampled.read()
    began, before = time.perf_counter(), sum(os.times()[2:4])
    # One is still there at the second reading, the other has ended.
    children = [subprocess.Popen([sys.executable, "-c", SPIN, "0.4", end]) for end in ("30", "0")]
    try:
        children[1].wait()
        while sum(psutil.Process(children[0].pid).cpu_times()[:2]) < 0.38:  # both in whole ticks of 10 ms, cut off
            time.sleep(0.01)
        sampled.read()
        took = time.perf_counter() - began
        ended = sum(os.times()[2:4]) - before
        there = sum(psutil.Process(children[0].pid).cpu_times()[:2])
        share = rows(store)["children_cpu_pct"][0]
        assert share == pytest.approx(100 * (ended + there) / took, rel=0.1) and share * took > 75
    finally:
        children[0].kill()
        children[0].wait()
    time.sleep(0.5)  # the kernel counts in steps of 10 ms
    sampled.read()
    assert not rows(store)["children_cpu_pct"][0] > 20, "what it used before does not count again"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not account for it")
@pytest.mark.real_clock("CPU time as a share of real time")
def test_a_thread_that_shares_its_core_waits_for_it(host, monkeypatch):
    monkeypatch.setattr(_host, "_CORES_S", 0.0)
    monkeypatch.setattr(_host, "_SELDOM_SHARE", 1e9)
    sampled, store, _ = host
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    rival = subprocess.Popen([sys.executable, "-c", SPIN, "30", "0"])  # on the same core
    try:
        sampled.read()
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        sampled.read()
        waited = rows(store)["threads_queued_pct"][0]
        assert waited > 25
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, before)
    sampled.read()
    time.sleep(0.5)
    sampled.read()
    assert rows(store)["threads_queued_pct"][-1] < waited, "it sleeps, and wants no core"


def test_cores_make_the_machine_s_share(host, monkeypatch):
    sampled, store, _ = host
    core = namedtuple("core", "user idle iowait guest")  # a guest's time is in the user's
    readings = iter([[core(1, 1, 1, 0)] * 2, [core(5, 1, 1, 4), core(2, 3, 2, 0)]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(readings))
    sampled.read()
    time.sleep(0.3)
    sampled.read()
    row = rows(store)
    assert [row[name][0] for name in ("cpu_pct", "cpu_max_pct", "iowait_pct")] == [62.5, 100.0, 12.5]


def test_written_bytes_are_a_rate(host, monkeypatch):
    sampled, store, _ = host
    counts = iter([(0, 0), (3_000_000, 500_000)])

    def counters():
        read, written = next(counts)
        return type("C", (), {"read_bytes": read, "write_bytes": written})

    monkeypatch.setattr(psutil, "disk_io_counters", counters)
    clock = iter(np.arange(0, 100, 0.5))
    monkeypatch.setattr(_host.time, "perf_counter", lambda: next(clock))
    sampled.read()
    sampled.read()
    row = rows(store)
    assert row["disk_read_bytes_per_s"][0] / row["disk_write_bytes_per_s"][0] == pytest.approx(6)


def test_what_psutil_cannot_read_is_switched_off_alone(host, monkeypatch):
    sampled, store, memory = host

    def refused():
        raise PermissionError("no /proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", refused)
    for _ in range(3):
        sampled.read()
    row = rows(store)
    assert np.isnan(row["disk_read_bytes_per_s"]).all()
    assert not np.isnan(row["memory_used_bytes"]).any()
    assert [e["source"] for e in memory.unavailable] == ["host disk"]


def test_a_machine_without_psutil_samples_its_gpus(play, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psutil", None)
    scenario = Scenario("h100")
    play(scenario)
    sampler = Sampler(Clock())
    sampler.start()
    wait_until(lambda: {block.group for block in sampler.drain()} >= {"gpu0"})
    sampler.stop()
    assert "host" in [e["source"] for e in sampler.unavailable]


@pytest.mark.parametrize(
    ("text", "name", "float16"),
    [
        ("processor: 0\nmodel name\t: Xeon  Gold\nflags\t\t: fpu avx512f avx512_fp16\n\n", "Xeon Gold", True),
        ("model name\t: AMD EPYC\nflags\t\t: fpu f16c avx512_bf16\n\nmodel name: B\n", "AMD EPYC", False),
        ("processor\t: 0\nFeatures\t: fp asimd fphp asimdhp\n", None, True),
        ("", None, None),
    ],
)
def test_what_the_cpu_is_and_computes(tmp_path, text, name, float16):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    facts = host_facts(str(tmp_path))
    assert (facts["cpu"], facts["cpu_float16"]) == (name, float16)


OWN_GROUP = "../../../proc/self/cgroup"


def version_1(quota_us: int, limit: int, cpu: str = "cpu", group: str = "") -> dict[str, str]:
    """A tree for each controller, and numbers that mean "none"."""
    period = {f"{cpu}{group}/cpu.cfs_quota_us": str(quota_us), f"{cpu}{group}/cpu.cfs_period_us": "100000"}
    return period | {f"memory{group}/memory.limit_in_bytes": str(limit)}


# A job's own group below the mount: the tightest limit on the way holds.
NESTED = {"jobs/cpu.max": "400000 100000", "jobs/7/cpu.max": "max 100000"}
NESTED |= {"jobs/7/memory.max": "2048", "jobs/memory.max": "9999"}


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({"cpu.max": "150000 100000", "memory.max": "4096"}, 1.5, 4096),
        ({"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        (version_1(250_000, 8192), 2.5, 8192),
        (version_1(-1, 9223372036854771712, "cpu,cpuacct"), None, None),
        (NESTED | {OWN_GROUP: "0::/jobs/7\n"}, 4.0, 2048),
        (
            version_1(50_000, 1024, "cpu,cpuacct", "/slurm/9")
            | {OWN_GROUP: "4:memory:/slurm/9\n3:cpu,cpuacct:/slurm/9\n"},
            0.5,
            1024,
        ),
        ({OWN_GROUP: "garbage\n"}, None, None),
        ({}, None, None),
    ],
)
def test_a_container_s_limits_in_either_version_of_control_groups(tmp_path, files, quota, limit):
    for name, text in files.items():
        path = (tmp_path / "sys/fs/cgroup" / name).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = host_facts(str(tmp_path))
    assert (facts["cpu_quota"], facts["memory_limit_bytes"]) == (quota, limit)


@pytest.mark.parametrize(
    ("hz", "ticks", "wall_s", "cpu_s", "period_s"),
    [
        (10, 50, 0.002, 0.0005, 0.1),
        (10, 50, 0.2, 0.0005, 0.8),  # a quarter of the time of a slow driver
        (10, 50, 60, 0.0005, RateController.SLOWEST_S),
        (100, 200, 0.001, 0.001, 0.05),  # two percent of a core
    ],
)
def test_the_pace_follows_the_driver_and_bounds_our_own_share(hz, ticks, wall_s, cpu_s, period_s):
    pace = RateController(hz, gpus=1)
    for _ in range(ticks):
        pace.tick(wall_s=wall_s, cpu_s=cpu_s)
    assert pace.period_s == pytest.approx(period_s, rel=0.01)
    for _ in range(300):
        pace.tick(wall_s=0.002, cpu_s=0.0005)
    assert pace.period_s == pytest.approx(1 / hz if hz == 10 else 0.025, rel=0.01), "and back"


@pytest.mark.parametrize(("value", "mode"), [(0, ""), (2, "vGPU")])
def test_vgpu_is_named_as_the_reason(step, monkeypatch, value, mode):
    monkeypatch.setattr(_devices.Path, "read_text", lambda self: "6.1-generic")
    scenario = Scenario()
    scenario.gpu("h100").curve("virtualization", value).without("utilization")
    stepped = step(scenario)
    stepped.memory.modes["gpu0"] = _devices.mode_of(stepped.gate, stepped.gpu)
    stepped.at(0)
    expected = "vGPU: not supported in this mode" if mode else "not supported by this GPU or its"
    assert stepped.reasons()["gpu0 utilization"].startswith(expected)


def test_wsl_is_named_as_the_reason(step, monkeypatch):
    monkeypatch.setattr(_devices.Path, "read_text", lambda self: "5.15-microsoft-standard-WSL2")
    scenario = Scenario("t4")
    stepped = step(scenario)
    assert _devices.mode_of(stepped.gate, stepped.gpu) == "WSL"


@pytest.mark.real_clock("CPU time as a share of real time")
def test_overhead_is_measured(play):
    scenario = Scenario("h100")
    play(scenario)
    before = set(threading.enumerate())  # an earlier test left a thread in a call that hangs
    sampler = Sampler(Clock())
    assert sampler.overhead == {"sampler_cpu_pct": 0.0, "hz": 0.0}
    sampler.start()
    time.sleep(1)
    cost = sampler.overhead
    sampler.stop()
    assert 0.01 < cost["sampler_cpu_pct"] < 20  # loading the libraries included
    assert 1 < cost["hz"] <= 10
    assert set(threading.enumerate()) <= before
