"""A small generator of recordings' tables: stretches of steps with a stated truth.

    run = Generated(seed=1)
    run.steps(300, step_ms=8)                          # healthy
    run.steps(300, step_ms=8, wait_ms=30)              # input-bound
    run.diagnose()

Times are integers in nanoseconds; jitter is multiplicative and seeded.
"""

from __future__ import annotations

import numpy as np
from made_up_rows import step_table
from made_up_run import MS, MadeUpRun, findings_of, reported, write

from gpu_util_callback.job import hashed_arguments

__all__ = ["GPU", "MS", "STARTED", "START_NS", "Generated", "InStep", "findings_of", "reported", "write"]

START_NS = 1_700_000_000_000_000_000

GPU = {
    "index": 0,
    "nvml_index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA H200",
    "label": "gpu0",
    "used_by_framework": True,
    "memory_total_bytes": 150_000_000_000,
    "compute_capability": "9.0",
    "pcie_generation_max": 5,  # 63 GB/s
    "pcie_width_max": 16,
}


# How a run of a script was started: runs of other names are one job where both are known, and the same.
STARTED = {"script": "train.py", "arguments": hashed_arguments(["train.py"])}


class Generated(MadeUpRun):
    """Builds the tables of one run, stretch by stretch.

    Args:
        seed: of all noise.
        gpus: the manifest's list of GPUs; utilization samples are made for those in use.
        noise: relative standard deviation of step times and waits.
        at_s: when it starts, seconds after other runs.
    """

    def __init__(self, seed: int = 0, gpus: list[dict] | None = None, noise: float = 0.05, at_s: float = 0.0, **facts):
        super().__init__()
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.now = START_NS + round(at_s * 1e9)
        self.step = 0
        self.facts = {
            "started_ns": self.now,
            "rank": 0,
            "gpus": gpus or [],
            "host": "node-a",
            "framework": {"name": "tensorflow", "backend": "tensorflow", "version": "2.21.0"},
            "fit": {"batch_size": 32, "steps_per_execution": 1, "input_kind": "tf.data"},
        } | facts
        self._busy: list[tuple[int, int, float]] = []  # GPU active: start, end, share
        self._gpu_values: dict[str, list[tuple[int, int, float]]] = {}
        self._marks: dict[str, list[tuple[int, str, float]]] = {}
        self.drop_samples = 0.0

    def _jitter(self, value_ms: float, count: int) -> np.ndarray:
        if value_ms <= 0:
            return np.zeros(count, np.int64)
        factor = np.maximum(0.2, self.rng.normal(1, self.noise, count))
        return (value_ms * MS * factor).astype(np.int64)

    def steps(
        self,
        count: int,
        *,
        step_ms: float,
        wait_ms: float | np.ndarray = 0.0,
        callback_ms: float | np.ndarray = 0.0,
        compile_ms: float | np.ndarray = 0.0,
        gpu_share: float = 0.97,
        gpu_in_wait: float = 0.0,
        estimated: int = 0,
        shape_id: int = -1,
    ) -> tuple[int, int]:
        """A stretch of steps; arrays give one value a step. Returns its [first, end) steps."""

        def part(value) -> np.ndarray:
            if isinstance(value, np.ndarray):
                return (value * MS).astype(np.int64)
            return self._jitter(value, count)

        body, wait, callbacks, compiles = map(part, (step_ms, wait_ms, callback_ms, compile_ms))
        floor = (self.rng.uniform(0.05, 0.15, count) * MS).astype(np.int64)  # an instant dataset
        wait = wait + floor
        first = self.step
        parts = {"input_wait_ns": wait, "compile_ns": compiles, "body_ns": body, "callbacks_ns": callbacks}
        rows = step_table(self.now, first, **parts, estimated=estimated, shape_id=shape_id)
        self._steps.append(rows)
        end = self.now + int(rows["duration_ns"].sum())
        idle = int((wait * (1 - gpu_in_wait) + callbacks + compiles).sum())
        self._gpus_work(self.now, end, gpu_share * (1 - idle / max(1, end - self.now)))
        self.now, self.step = end, first + count
        return first, self.step

    def _gpus_work(self, start_ns: int, end_ns: int, share: float) -> None:
        self._busy.append((start_ns, end_ns, share))

    def hook_detail(self, name: str, start_ns: int, end_ns: int, self_ns: int, count: int) -> None:
        """What one callback's batch hooks took, summed over a flush."""
        self._phase("callback", name, start_ns, end_ns, self_ns=self_ns, count=count)

    def input_filled(self, start_ns: int, seconds: float) -> None:
        """The first batch of an epoch took so long; a detail of its step's wait."""
        self._phase("input_setup", "first batch", start_ns, start_ns + round(seconds * 1e9))

    def slow_map(self, batches: int, ms: float) -> None:
        """A reading of a map that runs one call at a time; eight cores could share its work."""
        self.facts["machine"] = {"cpus": 8, "cpus_allowed": 8}
        self.reading(("map(decode)", "ParallelMapV2", ms, 1.0, "fixed_parallelism"), batches=batches)

    def gpu_value(self, column: str, seconds: float, value: float, gpu: int = 0) -> None:
        """What a column of a GPU reads for the last `seconds`."""
        self._gpu_values.setdefault(f"gpu{gpu}:{column}", []).append((self.now - round(seconds * 1e9), self.now, value))

    def mark(self, group: str, column: str, value: float) -> None:
        """One sample of a group, now: of "host", or of a group of events such as "gpu0/xid"."""
        self._marks.setdefault(group, []).append((self.now, column, value))

    def trace(self, steps: int, step_ms: float, *, gpu: int = 0, kernels: int = 200, **share: float) -> None:
        """A profiler window over the next `steps` steps; shares of the step by category.

        What is not given is `kernel`.
        """
        length = round(step_ms * MS)
        parts = {name: round(part * length) for name, part in share.items()}
        for i in range(steps):
            self._traced_step(gpu, self.step + i, self.now + i * length, length, parts, kernels)
        self._windows += 1

    def kernel(self, name: str, total_ms: float, tensor_core: str, count: int = 100) -> None:
        """A kernel of the newest window on gpu 0."""
        self._kernel([0], name, total_ms, tensor_core, count)

    def samples(self, hz: float = 10) -> dict[str, dict[str, np.ndarray]]:
        """Samples of each GPU in use, `hz` a second, as the driver would have read them.

        Of a GPU that is not in use only what `gpu_value` says.
        """
        times = np.arange(self.facts["started_ns"], self.now, round(1e9 / hz))
        rng = np.random.default_rng(self.seed + 1)  # the same samples however often it is asked
        if self.drop_samples:
            times = times[rng.random(len(times)) >= self.drop_samples]
        groups: dict[str, dict[str, np.ndarray]] = {}
        for gpu in self.facts["gpus"]:
            index, used = gpu["index"], gpu.get("used_by_framework")
            if not used and not any(name.startswith(f"gpu{index}:") for name in self._gpu_values):
                continue
            values = np.full(len(times), np.nan)
            for start, end, share in self._busy if used else ():
                inside = (times >= start) & (times < end)
                noisy = 100 * share + rng.normal(0, 2, int(inside.sum()))
                values[inside] = np.clip(np.rint(noisy), 0, 100)
            # What a driver reports is the mean of a window that ends when it is read.
            columns = {"time_ns": times + round(1e9 / hz), "utilization_pct": values}
            for name, pieces in self._gpu_values.items():
                which, column = name.split(":")
                if which != f"gpu{index}":
                    continue
                columns.setdefault(column, np.full(len(times), np.nan))
                for start, end, value in pieces:
                    columns[column][(times >= start) & (times < end)] = value
            groups[f"gpu{index}"] = columns
        for group, rows in self._marks.items():
            groups[group] = {
                "time_ns": np.array([row[0] for row in rows]),
                rows[0][1]: np.array([row[2] for row in rows]),
            }
        return groups


class InStep(Generated):
    """A worker whose steps last as long as the others'; its clock is off by `offset_ms`."""

    def __init__(self, rank: int, offset_ms: float, steps: int = 300):
        super().__init__(seed=rank, rank=rank, world_size=2, job="b", host=f"node-{rank}", at_s=offset_ms / 1e3)
        self.noise = 0.0
        lengths = np.random.default_rng(7).normal(30, 4, 300)[:steps]
        noise = np.random.default_rng(rank).normal(0, 0.1, 301)[: steps + 1]
        self.steps(steps, step_ms=lengths + np.diff(noise))
