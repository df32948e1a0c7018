"""Failure is normal: each code of each call, lost GPUs, hangs, slow calls, other people's code."""

import threading
import time

import numpy as np
import pynvml
import pytest
from nvml import GIB, Scenario
from waiting import wait_until

from gpu_util_callback.gpus import FrameworkGpu, Sampler, _gate
from gpu_util_callback.gpus import sampler as _worker
from gpu_util_callback.recording.clock import Clock

pytestmark = pytest.mark.real_clock("a running sampler hangs, and is counted")

# Every call that a tick makes, and the column that goes with it (None: a group of its own).
CALLS = {
    "nvmlDeviceGetUtilizationRates": "utilization_pct",
    "nvmlDeviceGetMemoryInfo_v2": None,
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTemperatureV": None,
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetFieldValues": "power_energy_mw",
    "nvmlDeviceGetCurrentClocksEventReasons": None,
    "nvmlDeviceGetComputeRunningProcesses_v3": None,
    "nvmlDeviceGetProcessUtilization": "utilization_process_pct",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw",
    "nvmlDeviceGetMaxClockInfo": "sm_clock_max_mhz",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetTotalEccErrors": "ecc_corrected",
    "nvmlDeviceGetSamples": None,
    "nvmlGpmQueryDeviceSupport": None,
    "nvmlGpmSampleAlloc": None,
    "nvmlGpmSampleGet": None,
    "nvmlGpmMetricsGet": None,
}
CODES = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)]


# How long a call takes that hangs and returns: several times as long as a hang takes to be noticed.
HANGS_S = 1.0


@pytest.fixture
def sampled(play, monkeypatch):
    """sampled(scenario, **options): a running sampler that notices a hang soon; stopped at the end of the test."""
    running = []
    for name, seconds in (("HANG_S", 0.3), ("WATCH_S", 0.1), ("SLOW_S", 0.4)):
        monkeypatch.setattr(_worker, name, seconds)

    def start(scenario, **options):
        sampler = Sampler(Clock(), **options)
        sampler.library = play(scenario)
        running.append(sampler)
        sampler.start()
        return sampler

    yield start
    for sampler in running:
        sampler.stop()


def rows_of(sampler, group, into=None):
    """How many rows of a group came so far."""
    return len(drained(sampler, into).get(group, {"t": ()})["t"])


def drained(sampler, into=None):
    """Everything so far: group -> {"t", column: values}."""
    into = {} if into is None else into
    for block in sampler.drain():
        into.setdefault(block.group, []).append(block)
    return {
        group: {
            "t": np.concatenate([block.time_ns for block in blocks]) / 1e9,
            **{
                name: np.concatenate([block.values[:, i] for block in blocks])
                for i, name in enumerate(blocks[0].columns)
            },
        }
        for group, blocks in into.items()
    }


@pytest.mark.parametrize("symbol", CALLS)
def test_every_code_of_every_call_costs_only_its_own_value(step, symbol):
    scenario = Scenario()
    scenario.gpu("h100").process("self", GIB, sm=50)
    for i, code in enumerate(CODES):  # one code a second
        scenario.call(symbol, code=code, from_=i, until=i + 1)
    stepped = step(scenario)
    for i, code in enumerate(CODES):
        stepped.memory.blocked.clear()
        stepped.memory.gone.clear()
        stepped.memory._reasons.clear()
        stepped.library.set_time(i + 0.01)
        stepped.reader.close()
        stepped.reader = stepped.reader.renewed(stepped.gate)
        rows = stepped.at(i + 0.05, i + 0.3, i + 0.55)
        if code in _gate.GONE:
            assert stepped.memory.gone, (symbol, code)
            continue
        assert len(rows["gpu0"]["t"]) == 3, (symbol, code)
        column = CALLS[symbol]
        if column:
            assert np.isnan(rows["gpu0"][column]).all(), (symbol, code)
            if code not in _gate.NO_NEW_VALUE and code in _gate.OFF:
                assert stepped.reasons(), (symbol, code)
        for other in {"power_mw", "sm_clock_mhz", "utilization_pct"} - {column}:
            assert not np.isnan(rows["gpu0"][other]).any(), (symbol, code, other)


def test_a_function_missing_in_the_binding_is_named(step, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetPowerUsage")
    scenario = Scenario("h100")
    stepped = step(scenario)
    assert np.isnan(stepped.at(0)["gpu0"]["power_mw"]).all()
    assert "nvidia-ml-py" in stepped.reasons()["gpu0 power"]


def test_what_is_off_is_not_asked_again(step):
    scenario = Scenario("h100").call("nvmlDeviceGetPowerUsage", code=3)
    stepped = step(scenario)
    stepped.at(*np.arange(0, 5, 0.1))
    assert stepped.library.calls("nvmlDeviceGetPowerUsage") == 1


def test_a_passing_error_backs_off_and_comes_back(step):
    stepped = step(Scenario("h100").call("nvmlDeviceGetPowerUsage", code=999, times=3))
    assert np.isnan(stepped.at(0, 0.9)["gpu0"]["power_mw"]).all()
    assert stepped.library.calls("nvmlDeviceGetPowerUsage") == 1  # backed off
    stepped.at(1.1)
    assert "unknown error" in stepped.reasons()["gpu0 power"]
    assert stepped.at(3.2, 8.3)["gpu0"]["power_mw"].tolist()[-1] == 500_000
    assert not stepped.reasons()


def test_a_lost_gpu_is_a_gap_and_returns(sampled, monkeypatch):
    monkeypatch.setattr(_gate, "BACK_OFF_S", (0.1, 0.1, 0.1))
    scenario = Scenario("h100", "h100").call("*", gpu=0, code=15, from_=0.4, until=1.0)
    sampler = sampled(scenario)
    blocks = {}
    wait_until(lambda: any("lost" in entry["reason"] for entry in sampler.unavailable), 3)
    wait_until(lambda: rows_of(sampler, "gpu0/lost", blocks) == 2, 3)
    before = rows_of(sampler, "gpu0", blocks)
    wait_until(lambda: rows_of(sampler, "gpu0", blocks) >= before + 2, 3)
    sampler.stop()
    rows = drained(sampler, blocks)
    t = rows["gpu0"]["t"] - sampler.library.start_us / 1e6
    assert t.min() < 0.4 and np.diff(t).max() > 0.5
    assert not ((t > 0.45) & (t < 0.95)).any()
    assert rows["gpu0/lost"]["lost"].tolist() == [1, 0]
    assert not np.isnan(rows["gpu0"]["utilization_pct"]).any()
    assert np.diff(rows["gpu1"]["t"]).max() < 0.5  # the other GPU had no gap
    assert not [entry for entry in sampler.unavailable if "lost" in entry["reason"]]
    assert sampler.library.gpm_samples == 0


def test_a_slow_call_slows_only_itself(sampled):
    scenario = Scenario("h100").call("nvmlDeviceGetPowerUsage", latency_s=0.3)
    sampler = sampled(scenario)
    blocks = {}
    wait_until(lambda: rows_of(sampler, "gpu0", blocks) >= 10)  # as many calls if it were made at each
    sampler.stop()
    rows = drained(sampler, blocks)["gpu0"]
    assert 1 <= (~np.isnan(rows["power_mw"])).sum() <= 2
    assert sampler.library.calls("nvmlDeviceGetPowerUsage") <= 2
    assert not np.isnan(rows["utilization_pct"]).any()


def test_a_slow_driver_lowers_the_rate(sampled):
    scenario = Scenario("h100").call("*", latency_s=0.01)  # 20 calls a tick
    sampler = sampled(scenario)
    wait_until(lambda: 0 < sampler.overhead["hz"] < 5)
    assert drained(sampler)["gpu0"]["t"].size


def test_a_healthy_gpu_has_nothing_unavailable(sampled):
    scenario = Scenario()
    scenario.gpu("h100").process("self", GIB, sm=50)
    sampler = sampled(scenario, framework_gpus=[FrameworkGpu(0)])
    wait_until(lambda: sampler.library.calls("nvmlEventSetWait_v2") >= 3, 6)
    assert sampler.unavailable == []


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetPowerUsage",  # while it is sampled; the others while GPUs are listed
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlGpmQueryDeviceSupport",
    ],
)
def test_a_gpu_that_hangs_is_named_and_holds_back_only_itself(sampled, symbol):
    scenario = Scenario("h100", "a100").call(symbol, gpu=0, latency_s=60)
    began = time.perf_counter()
    sampler = sampled(scenario)
    assert time.perf_counter() - began < 0.5
    blocks = {}
    wait_until(lambda: rows_of(sampler, "gpu1", blocks) >= 5 and rows_of(sampler, "host", blocks) >= 2, 8)
    (reason,) = [e for e in sampler.unavailable if "has not answered" in e["reason"]]
    assert reason["source"].startswith(("nvml 0", "gpu0"))
    assert symbol.removesuffix("_v2") in reason["reason"] or symbol == "nvmlDeviceGetPowerUsage"
    assert [(gpu["name"], gpu["nvml_index"]) for gpu in sampler.gpus][1] == ("NVIDIA A100-SXM4-40GB", 1)
    began = time.perf_counter()
    rows = drained(sampler, blocks)
    assert time.perf_counter() - began < 0.2
    assert "gpu0" not in rows or symbol == "nvmlDeviceGetPowerUsage"
    # GPU 1 waited at most until the hang was noticed, then went on in a thread of its own.
    t = rows["gpu1"]["t"] - sampler.library.start_us / 1e6
    assert t[0] < _worker.HANG_S + _worker.WATCH_S + 0.6
    assert np.median(np.diff(t)) < 0.3
    began = time.perf_counter()
    sampler.stop()
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(("symbol", "gpus"), [("UUID", 1), ("UUID", 3), ("PowerUsage", 2)])
def test_a_gpu_that_hung_is_sampled_when_it_answers(sampled, symbol, gpus):
    """While GPUs were listed, or later."""
    scenario = Scenario().call(f"nvmlDeviceGet{symbol}", gpu=0, latency_s=HANGS_S, times=1)
    for _ in range(gpus):
        scenario.gpu("h100")
    own = [FrameworkGpu(i) for i in range(gpus)]
    sampler = sampled(scenario, framework_gpus=own)
    others = [f"gpu{i}" for i in range(1, gpus)]
    blocks = {}
    wait_until(lambda: any("answered" in e["reason"] for e in sampler.unavailable), 4)
    wait_until(lambda: all(key in drained(sampler, blocks) for key in others), 4)
    wait_until(lambda: rows_of(sampler, "gpu0", blocks) >= 5, 8)
    wait_until(lambda: not [e for e in sampler.unavailable if "answered" in e["reason"]], 3)
    assert not any("not certain" in gpu["label"] for gpu in sampler.gpus)
    assert len({gpu["uuid"] for gpu in sampler.gpus}) == gpus
    # Nobody is sampled twice: one row a tick, of one thread.
    sampler.stop()
    for key in ("gpu0", *others):
        t = np.sort(drained(sampler, blocks)[key]["t"])
        assert np.median(np.diff(t[-10:])) > 0.06


def test_starting_nvml_may_hang(sampled):
    scenario = Scenario("h100").call("nvmlInitWithFlags", latency_s=HANGS_S)
    began = time.perf_counter()
    sampler = sampled(scenario)
    assert time.perf_counter() - began < 0.5
    assert sampler.gpus == []
    wait_until(lambda: [e for e in sampler.unavailable if "nvmlInit" in e["reason"]], 3)
    wait_until(lambda: "host" in drained(sampler), 3)  # the host was sampled meanwhile
    wait_until(lambda: sampler.gpus, 5)
    wait_until(lambda: not sampler.unavailable or "nvmlInit" not in str(sampler.unavailable), 3)


@pytest.mark.parametrize(
    ("code", "words"), [(9, "not loaded"), (18, "kernel module"), (12, "no NVIDIA driver"), (4, "permission")]
)
def test_nvml_that_does_not_start(play, monkeypatch, code, words):
    monkeypatch.setattr(_gate, "nvidia_gpus", lambda: 1)
    play(Scenario("h100").call("nvmlInitWithFlags", code=code))
    binding, problem = _gate.open_nvml()
    assert binding is None and problem["source"] == "NVML" and words in problem["reason"]


@pytest.mark.parametrize(
    ("on_the_bus", "reason"),
    [(None, "no NVIDIA driver library"), (1, "no NVIDIA driver library"), (0, "no NVIDIA GPU in")],
)
def test_no_library_at_all(monkeypatch, on_the_bus, reason):
    monkeypatch.setattr(_gate, "nvidia_gpus", lambda: on_the_bus)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(_gate, "_started_in", None)

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "CDLL", no_library)
    sampler = Sampler(Clock())
    sampler.start()
    wait_until(lambda: sampler.unavailable)
    sampler.stop()
    (problem,) = sampler.unavailable
    assert problem["reason"].startswith(reason) and sampler.gpus == []
    assert bool(problem["cure"]) is (on_the_bus != 0)  # none: nothing to install


def test_the_binding_of_another_package_is_recognised(monkeypatch):
    monkeypatch.delattr(pynvml, "_nvmlGetFunctionPointer")
    binding, problem = _gate.open_nvml()
    assert binding is None
    assert "pynvml" in problem["reason"]


def test_other_code_may_shut_nvml_down(step):
    stepped = step(Scenario("h100"))
    stepped.at(0)
    pynvml.nvmlShutdown()
    stepped.at(0.1)
    assert stepped.at(1.2)["gpu0"]["power_mw"].tolist() == [500_000]


def test_two_samplers_in_two_threads(play):
    scenario = Scenario("h100", "a100")
    library = play(scenario)
    found = {}

    def fit(name, index):
        sampler = Sampler(Clock(), framework_gpus=[FrameworkGpu(0, pci_bus_id=f"0000:{0x17 + index:02x}:00.0")])
        sampler.start()
        blocks = {}
        wait_until(lambda: rows_of(sampler, "gpu0", blocks) >= 5)
        sampler.stop()
        found[name] = drained(sampler, blocks), sampler.gpus

    threads = [threading.Thread(target=fit, args=(i, i)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, power in enumerate((500_000, 300_000)):
        rows, gpus = found[i]
        assert gpus[0]["nvml_index"] == i
        assert len(rows["gpu0"]["t"]) >= 5
        assert (rows["gpu0"]["power_mw"] == power).all()
    assert library.calls("nvmlInitWithFlags") == 1
    assert library.calls("nvmlShutdown") == 0  # other users of NVML in the process go on


def test_xid_errors_are_marked_on_their_gpu(sampled):
    scenario = Scenario("h100")
    scenario.gpu("h100").xid(0.4, 79).xid(0.5, 31)
    sampler = sampled(scenario)
    blocks = {}
    errors = lambda: drained(sampler, blocks).get("gpu1/xid", {"xid": np.empty(0)})["xid"].tolist()  # noqa: E731
    wait_until(lambda: len(errors()) >= 2, 5)
    assert errors() == [79, 31]
    assert "gpu0/xid" not in drained(sampler, blocks)


def test_driver_without_events_loses_only_those(sampled):
    scenario = Scenario("h100").without("nvmlEventSetCreate")
    sampler = sampled(scenario)
    wait_until(lambda: "gpu0" in drained(sampler))
    assert [e for e in sampler.unavailable if "Xid" in e["source"]]


def test_the_last_samples_come_with_the_drain_after_stop(sampled):
    scenario = Scenario("h100", samples_period_ms=50)
    sampler = sampled(scenario)
    time.sleep(0.4)
    sampler.stop()
    rows = drained(sampler)
    assert rows["gpu0/utilization"]["t"].max() > sampler.library.start_us / 1e6 + 0.3
    assert sampler.drain() == []
    sampler.stop()  # twice is no harm


def test_stop_before_start_and_drain_before_start():
    sampler = Sampler(Clock())
    sampler.stop()
    assert sampler.drain() == []
    assert sampler.overhead["hz"] == 0


def test_what_nobody_drains_is_bounded():
    from gpu_util_callback.gpus import _store

    store = _store.Store()
    for i in range(_store.MAX_ROWS + 10):
        store.add("gpu0", ("a",), i, [float(i)])
    (block,) = store.drain()
    assert len(block.time_ns) <= _store.MAX_ROWS  # bounded: the oldest went
    assert block.time_ns[-1] == _store.MAX_ROWS + 9
