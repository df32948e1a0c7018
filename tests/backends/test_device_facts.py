"""What the frameworks say of GPUs, memory and jobs, where the machine has none: made-up devices."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from packages import need

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.gpus import FrameworkGpu
from gpu_util_callback.job import job_facts

GIB = 2**30


class Device:
    """A JAX device as `jax.local_devices()` lists it."""

    def __init__(self, number: int, ordinal: int, platform: str = "gpu"):
        self.id = number
        self.local_hardware_id = ordinal
        self.platform = platform
        self.device_kind = "NVIDIA A100-SXM4-40GB"
        self.compute_capability = "8.0"

    def memory_stats(self):
        return {
            "bytes_in_use": 3 * GIB,
            "peak_bytes_in_use": 5 * GIB,
            "bytes_limit": 30 * GIB,
            "bytes_reserved": 0,
            "largest_free_block_bytes": 20 * GIB,
            "num_allocs": 17,
        }


def test_jax_devices_are_named_by_this_process_own_ordinal(monkeypatch):
    need("jax")
    from gpu_util_callback.backends.jax import runtime

    devices = [Device(4, 0), Device(5, 1), Device(0, 0, "cpu")]
    monkeypatch.setattr(runtime.jax, "local_devices", lambda: devices)
    found = runtime.RUNTIME.devices()
    assert [one["index"] for one in found] == [0, 1]
    assert FrameworkGpu(**found[1]).compute_capability == "8.0"
    memory = runtime.RUNTIME.memory()
    assert memory[1]["allocator_peak_bytes"] == 5 * GIB
    assert memory[1]["allocator_limit_bytes"] == 30 * GIB
    monkeypatch.setattr(runtime.jax, "local_devices", lambda: devices[2:])
    assert runtime.RUNTIME.devices() is None and runtime.RUNTIME.memory() == {}


def test_torch_gpus_without_initialising_cuda(monkeypatch):
    need("torch")
    from gpu_util_callback.backends.torch import runtime

    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: False,
        device_count=lambda: 2,
        get_device_properties=lambda index: pytest.fail("this initialises CUDA"),
        memory_stats=lambda index: pytest.fail("this initialises CUDA"),
    )
    monkeypatch.setattr(runtime.torch, "cuda", cuda)
    assert [FrameworkGpu(**one).index for one in runtime.RUNTIME.devices()] == [0, 1]
    assert runtime.RUNTIME.memory() == {}
    assert runtime.probe() is None

    properties = SimpleNamespace(
        name="NVIDIA A100-SXM4-40GB",
        uuid="12345678-1234",
        major=8,
        minor=0,
        total_memory=40 * GIB,
        pci_domain_id=0,
        pci_bus_id=0x3B,
        pci_device_id=0,
    )
    cuda.is_initialized = lambda: True
    cuda.get_device_properties = lambda index: properties
    cuda.get_per_process_memory_fraction = lambda index: 0.5
    cuda.memory_stats = lambda index: (
        {"allocated_bytes.all.current": GIB, "allocated_bytes.all.peak": 2 * GIB, "num_ooms": 1} if index else {}
    )
    gpu = FrameworkGpu(**runtime.RUNTIME.devices()[1])
    assert gpu.uuid == "GPU-12345678-1234"
    assert runtime.RUNTIME.memory() == {
        1: {
            "allocator_used_bytes": GIB,
            "allocator_peak_bytes": 2 * GIB,
            "allocator_ooms": 1,
            "allocator_limit_bytes": 20 * GIB,
        }
    }


def test_a_busy_device_is_asked_and_not_waited_for(monkeypatch):
    need("torch")
    from gpu_util_callback.backends.torch import runtime

    class Event:
        reached = False

        def record(self):
            pass

        def query(self):
            return Event.reached

    fake = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, Event=Event)
    monkeypatch.setattr(runtime.torch, "cuda", fake)
    probe = runtime.probe()
    assert probe.idle(), "nothing was marked yet"
    probe.mark(None)
    assert not probe.idle()
    Event.reached = True
    assert probe.idle()


def test_a_search_for_objects_leaves_tuples_of_other_threads_alone():
    from gpu_util_callback.steps.frames import instances

    kept, ended = [Kept(), Kept()], threading.Event()

    def search() -> None:
        while not ended.is_set():
            assert len(instances(Kept)) == len(kept)

    searching = threading.Thread(target=search)
    searching.start()
    try:
        for _ in range(5_000):  # beside `gc.get_objects` 9 of 1,000 raised SystemError, on CPython 3.11
            assert len(tuple(k for k in range(3_000))) == 3_000
    finally:
        ended.set()
        searching.join()


class Kept:
    pass


def test_allocator_memory_is_recorded(tmp_path, monkeypatch):
    from gpu_util_callback.backends.adapters import framework_in_use
    from gpu_util_callback.backends.base import runtime_of

    stats = {"allocator_used_bytes": 3.0 * GIB, "allocator_limit_bytes": 4.0 * GIB}
    monkeypatch.setattr(type(runtime_of(framework_in_use()[0])), "memory", lambda self: {0: stats, 1: {}})
    with GpuUtilMonitor(tmp_path, report=False) as monitor:
        for _ in monitor.batches(range(3)):
            pass
    (recording,) = read_recordings(tmp_path)
    assert "gpu1/allocator" not in recording.samples
    samples = recording.samples["gpu0/allocator"]
    assert (samples["allocator_used_bytes"] == 3 * GIB).all()
    assert (np.diff(samples["time_ns"]) > 0).all()


def test_memory_that_cannot_be_read_switches_itself_off(tmp_path, monkeypatch):
    from gpu_util_callback.backends.adapters import framework_in_use
    from gpu_util_callback.backends.base import runtime_of

    def fail(self):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(type(runtime_of(framework_in_use()[0])), "memory", fail)
    with GpuUtilMonitor(tmp_path, report=False) as monitor:
        assert list(monitor.batches(range(3))) == [0, 1, 2]
    (recording,) = read_recordings(tmp_path)
    assert len(recording.steps["step"]) == 3
    assert "allocator memory" in {u["source"] for u in recording.facts["unavailable"]}


def test_what_the_framework_knows_of_its_job_wins():
    alone = job_facts(environ={})
    assert (alone["job"], alone["rank"], alone["world_size"]) == (None, 0, 1)
    jobs = [job_facts(environ={}, framework=("JAX coordinator", "10.0.0.1:1234", rank, 4)) for rank in range(4)]
    assert [one["rank"] for one in jobs] == [0, 1, 2, 3]
    assert {one["world_size"] for one in jobs} == {4}
    assert len({one["job"] for one in jobs}) == 1 and jobs[0]["job"]
    environ = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    both = job_facts(environ=environ, framework=("torchelastic", ":", 1, 2))
    assert both["job"] == job_facts(environ=environ)["job"]
