"""The stand-in under the real binding, and a sampler's reader stepped by hand."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvml import Library, Scenario, build_standin, loaded

from gpu_util_callback.gpus import _gate, _reader
from gpu_util_callback.gpus._devices import list_gpus
from gpu_util_callback.gpus._gate import Gate, Memory
from gpu_util_callback.gpus._reader import GpuReader
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.writer import RecordingWriter


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory) -> Path:
    """Where the stand-in is built, once for all tests."""
    folder = tmp_path_factory.mktemp("standin")
    build_standin(folder, named=False)
    return folder


@pytest.fixture
def play(standin_folder, monkeypatch) -> Iterator[Callable[[Scenario], Library]]:
    """play(scenario): the stand-in answers it in this process until the test ends."""
    monkeypatch.setattr(_gate, "_started_in", None)
    # Test machines are containers as often as not; tests of containers say so themselves.
    monkeypatch.setattr(_reader, "host_pids", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with contextlib.ExitStack() as stack:

        def start(scenario: Scenario) -> Library:
            library = stack.enter_context(loaded(scenario, standin_folder))
            monkeypatch.setattr(_gate, "_started_in", None)
            return library

        yield start


class Stepped:
    """One GPU's reader with the scenario's time moved by hand: what a tick reads at second t."""

    def __init__(self, library: Library, index: int = 0, mig: int | None = None) -> None:
        self.library = library
        self.memory = Memory()
        binding, problem = _gate.open_nvml()
        assert problem is None, problem
        self.gate = Gate(binding, self.memory)
        gpu = list_gpus(self.gate)[index]
        self.gpu = gpu if mig is None else gpu.migs[mig]
        self.clock = Clock(
            perf_ns=lambda: int(library.time * 1e9), wall_ns=lambda: library.start_us * 1000 + int(library.time * 1e9)
        )
        self.store = Store()
        self.key = f"gpu{index}"
        self.reader = GpuReader(self.gate, self.gpu, index, self.store, self.clock)
        self.rows: dict[str, dict[str, np.ndarray]] = {}

    def at(self, *seconds: float) -> dict[str, dict[str, np.ndarray]]:
        """Tick at each second; everything drained then: group -> {"t": seconds, column: values}."""
        for t in seconds:
            self.library.set_time(t)
            self.reader.read(t)
        return self.drain()

    def drain(self) -> dict[str, dict[str, np.ndarray]]:
        drained = {}
        for block in self.store.drain():
            start_ns = self.library.start_us * 1000
            columns = dict(zip(block.columns, block.values.T, strict=True))
            drained[block.group] = {"t": (block.time_ns - start_ns) / 1e9, **columns}
        return drained

    def recording(self, log_dir: Path, blocks: dict, tables: dict, **facts: object) -> Recording:
        """A recording of what was read, and of the rows of a training meanwhile."""
        begin = self.library.start_us * 1000
        gpu = {"index": 0, "used_by_framework": True, **self.gpu.facts, **self.reader.facts}
        known = {"framework": {"name": "tensorflow"}, "started_ns": begin, "gpus": [gpu]}
        writer = RecordingWriter(str(log_dir), known | facts, clock=self.clock)
        for name, rows in tables.items():
            writer.append(name, rows)
        for group, block in blocks.items():
            columns = [name for name in block if name != "t"]
            times = begin + np.rint(block["t"] * 1e9).astype(np.int64)
            writer.append_samples(group, columns, times, np.stack([block[name] for name in columns], 1))
        writer.close("ended")
        (recording,) = read_recordings(str(log_dir))
        return recording

    def reasons(self) -> dict[str, str]:
        """source -> reason of everything unavailable."""
        return {entry["source"]: entry["reason"] for entry in self.memory.unavailable}


class ScenarioTime:
    """The `time` module, with a scenario's seconds: pauses after failures are of its time, no call takes long."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def perf_counter(self) -> float:
        return self._library.time

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def step(play, monkeypatch) -> Callable[..., Stepped]:
    """step(scenario, index=0, mig=None): a stepped reader over a scenario."""

    def start(scenario: Scenario, **options) -> Stepped:
        scenario.options.setdefault("time", "manual")
        library = play(scenario)
        for module in (_gate, _reader):
            monkeypatch.setattr(module, "time", ScenarioTime(library))
        return Stepped(library, **options)

    return start
