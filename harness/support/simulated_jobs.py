"""Made-up jobs, sampled as real ones are: a host and a GPU that work in turn, seen by slow gauges.

    job = Job(seed=1, board=T4, hz=2)
    job.train(300, gpu=80)                     # healthy steps of 80 ms
    job.train(300, gpu=80, wait=lognormal(60)) # the input keeps it waiting
    job.write(folder)

What the gauges show follows from when the GPU worked: NVML's utilization is a mean over the last
sixth of a second to a second, held until the next one; counters, processes and limits are read at
their own pace and absent in between. All times given are milliseconds a step, all noise is seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from made_up_rows import step_table
from made_up_run import MadeUpRun
from simulated_boards import H100, Board
from simulated_gauges import FLUSH_S, HOST, MS, START_NS, Busy, Gauges, S
from simulated_noise import Series, normal


class Job(Gauges, MadeUpRun):
    """One process's training, stretch by stretch.

    Args:
        seed: of all noise.
        board: what its GPUs are; None = no GPU at all.
        gpus: how many; `used`: whether the framework uses them, one for all or one each.
        hz: ticks a second.
        without: what the gauges cannot read: "utilization", "power", "clock", "pcie", "throttle",
            "processes", "health", "ring", "gpm", "allocator", "host".
        framework: "tensorflow", "torch" or "jax".
        dry: the driver's own buffer has no samples while the GPU idles, as on many boards; then
            the polled value stands in, twice a second.
        facts: more facts for the manifest; "fit" and "model" are merged into those there are.
    """

    def __init__(
        self,
        seed: int = 0,
        board: Board | None = H100,
        gpus: int = 1,
        *,
        used: bool | Sequence[bool] = True,
        hz: float = 10,
        without: Sequence[str] = (),
        framework: str = "tensorflow",
        jitter: float = 2.0,
        dry: bool = False,
        **facts,
    ):
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.board, self.count, self.hz = board, gpus if board else 0, hz
        self.without, self.jitter, self.dry = set(without), jitter, dry
        self.now, self.step = START_NS, 0
        self.values: dict[tuple[int, str], list[tuple[int, float]]] = {}
        self.missed: list[tuple[int, int]] = []  # stretches in which the GPUs are not sampled
        self.absent: list[tuple[int, int]] = []  # and those in which the process does not run
        self.drop = 0.0
        self._busy = [Busy() for _ in range(self.count)]
        self._marks: dict[str, list[tuple[int, float]]] = {}
        self.facts = self._facts(framework, used, facts)

    def _facts(self, framework: str, used, given: dict) -> dict:
        versions = {"tensorflow": "2.21.0", "torch": "2.13.0", "jax": "0.10.2"}
        flags = [used] * self.count if isinstance(used, bool) else list(used)
        facts = {
            "started_ns": START_NS,
            "rank": 0,
            "world_size": 1,
            "host": "node-a",
            "pid": 4242,
            "fit_index": 0,
            "job": None,
            "framework": {
                "name": framework,
                "backend": framework,
                "python": "3.11.9",
                "version": versions[framework],
                "keras": "3.15.1",
                "cuda_build": True,
            },
            "model": {"name": "model", "parameters": 25_000_000},
            "fit": {
                "epochs": None,
                "steps_per_epoch": None,
                "batch_size": 64,
                "steps_per_execution": 1,
                "jit_compile": framework == "jax",
                "run_eagerly": False,
                "mixed_precision": "mixed_bfloat16",
                "input_kind": "DataLoader" if framework == "torch" else "tf.data",
                "timing": "graph" if framework == "tensorflow" else "python",
            },
            "gpus": [self._gpu(index, flag) for index, flag in enumerate(flags)],
            "machine": {"cpus": 16, "cpus_allowed": 16, "cpu_quota": None},
            "unavailable": [],
            "overhead": {"callback_us_per_step": 14.0},
        }
        for key, value in given.items():
            known = facts.get(key)
            facts[key] = {**known, **value} if isinstance(known, dict) else value
        return facts

    def _gpu(self, index: int, used: bool) -> dict:
        b = self.board
        return {
            "index": index,
            "nvml_index": index,
            "uuid": f"GPU-{index:08x}",
            "name": b.name,
            "label": f"gpu{index}",
            "used_by_framework": used,
            "memory_total_bytes": b.memory_bytes,
            "compute_capability": b.capability,
            "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
            "power_limit_mw": b.power_w * 1000,
            "power_default_mw": b.power_w * 1000,
            "sm_clock_max_mhz": b.clock_mhz,
            "pcie_generation_max": b.link[0],
            "pcie_width_max": b.link[1],
        }

    # -- what happens ------------------------------------------------------------------------------

    def train(
        self,
        count: int,
        *,
        gpu: float | Series = 20.0,
        wait: float | Series = 0.0,
        host: float | Series = 0.0,
        callback: float | Series = 0.0,
        compile: float | Series = 0.0,
        hook: str = "",
        share: float | Sequence[float] = 0.98,
        ahead: bool = False,
        get: float = 0.0,
        shape: int | np.ndarray = -1,
        estimated: bool = False,
        batches: int = 1,
    ) -> tuple[int, int]:
        """Steps, each: wait for input, compile, host work, the GPU's work, callbacks.

        Args:
            host: the GPU idles while the host prepares: launches, Python.
            share: how much of the GPU's work kernels are running; one number per GPU.
            ahead: the host runs ahead: the GPU works through waits and host work.
            get: spent in `get_next` beyond the wait, behind a busy GPU.
        Returns: [first, end) steps.
        """
        work, wait_, host_, hooks, compiles = (
            self._series(part, count) for part in (gpu, wait, host, callback, compile)
        )
        floor = self.rng.uniform(0.05, 0.15, count) * MS
        slack = self.rng.uniform(0.01, 0.03, count) * MS
        wait_ = np.round(wait_ + floor)
        parts = [wait_, compiles, np.round(host_ + 0.3 * work), np.round(0.7 * work), hooks]
        waits, compile_ns, body, gpu_wait, hooks = (part.astype(np.int64) for part in parts)
        first = self.step
        rows = step_table(
            self.now,
            first,
            rest_ns=slack.astype(np.int64),
            input_get_ns=waits + round(get * MS),
            input_wait_ns=waits,
            compile_ns=compile_ns,
            body_ns=body,
            gpu_wait_ns=gpu_wait,
            callbacks_ns=hooks,
            batches=batches,
            estimated=estimated,
            shape_id=shape,
        )
        self._steps.append(rows)
        start, duration = rows["start_ns"], rows["duration_ns"]
        shares = [share] * self.count if np.ndim(share) == 0 else share
        end = start + duration
        for index in range(self.count):
            if ahead:
                self._busy[index].add(start[0], end[-1], shares[index])
            else:
                began = start + waits + compile_ns + host_.astype(np.int64)
                self._busy[index].add(began, began + work.astype(np.int64), shares[index])
        if hook:
            self._hook_rows(hook, start, end, hooks)
        self.now, self.step = int(end[-1]), first + count
        return first, self.step

    def _series(self, value: float | Series, count: int) -> np.ndarray:
        if not callable(value):
            value = normal(value) if value > 0 else lambda rng, n: np.zeros(n)
        return np.asarray(value(self.rng, count), float) * MS

    def _hook_rows(self, name, start, end, hooks) -> None:
        flush = (start - START_NS) // round(FLUSH_S * S)
        edges = np.flatnonzero(np.diff(flush, prepend=-1))
        sums, stops = np.add.reduceat(hooks, edges), np.append(edges[1:], len(start))
        for first, stop, spent in zip(edges, stops, sums, strict=True):
            ends = int(end[stop - 1]), self.step + int(stop)
            self._phase("callback", name, int(start[first]), *ends, self_ns=int(spent), count=int(stop - first))

    def _gpus_work(self, start_ns: int, end_ns: int, share: float) -> None:
        for busy in self._busy:
            busy.add(start_ns, end_ns, share)

    def validate(self, batches: int, ms: float, *, wait: float = 0.0, share: float = 0.95) -> None:
        """A validation with its own batches; the GPU works but for the waits."""
        each, share = round((ms + wait) * MS), share * ms / (ms + wait)
        self.validated(batches, each, round(wait * MS), share=share)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """An epoch whose iterator is set up first."""
        with super().epoch():
            self.phase("input_setup", 0.01, f"epoch {self._epochs + 1}: iterator")
            yield

    def away(self, seconds: float) -> None:
        """Time passes and nobody trains or records: a stopped process."""
        self.absent.append((self.now, self.now + round(seconds * S)))
        self.now = self.absent[-1][1]

    def set(self, gpu: int | None = None, **columns: float) -> None:
        """What the gauges read from now on; `gpu=None`: on all."""
        for index in range(self.count) if gpu is None else (gpu,):
            for column, value in columns.items():
                self.values.setdefault((index, column), []).append((self.now, value))

    def hold(self, **columns: float) -> None:
        """What the host's memory reads from now on."""
        for column, value in columns.items():
            self.values.setdefault((HOST, column), []).append((self.now, value))

    def mark(self, group: str, value: float) -> None:
        """A row of "gpu<i>/lost" or "gpu<i>/xid", now."""
        self._marks.setdefault(group, []).append((self.now, value))

    def lose(self, seconds_or_none: Callable[[], None]) -> None:
        """While `seconds_or_none()` runs, GPU 0 is gone: marks, and no samples."""
        self.mark("gpu0/lost", 1)
        began = self.now
        seconds_or_none()
        self.missed.append((began, self.now))

    def window(
        self, count: int, step_ms: float, *, kernels: int = 300, only: Sequence[int] | None = None, **shares: float
    ) -> None:
        """A profiler window over the next steps: shares of the step; the rest is `kernel`."""
        for index in range(self.count) if only is None else only:
            for i in range(count):
                length = round(step_ms * MS * self.rng.normal(1, 0.03))
                parts = {
                    name: round(min(part * max(0.3, self.rng.normal(1, 0.08)), 1) * length)
                    for name, part in shares.items()
                }
                self._traced_step(index, self.step + i, self.now + i * length, length, parts, kernels)
        self._windows += 1

    def kernel(self, name: str, total_ms: float, tensor_core: str, count: int = 100) -> None:
        """A kernel of the newest window, on each GPU."""
        self._kernel(range(self.count), name, total_ms, tensor_core, count)
