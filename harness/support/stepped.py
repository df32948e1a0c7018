"""The reader of a GPU over the stand-in, whose time is moved by hand."""

from pathlib import Path

import numpy as np
from nvml import Library

from gpu_util_callback.gpus import _gate
from gpu_util_callback.gpus._devices import list_gpus
from gpu_util_callback.gpus._gate import Gate, Memory
from gpu_util_callback.gpus._reader import GpuReader
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.writer import RecordingWriter


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
