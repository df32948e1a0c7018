"""A small generator of recordings' tables: stretches of steps with a stated truth.

    run = Generated(seed=1)
    run.steps(300, step_ms=8)                          # healthy
    run.steps(300, step_ms=8, wait_ms=30)              # input-bound
    run.diagnose()

Times are integers in nanoseconds; jitter is multiplicative and seeded.
"""

from __future__ import annotations

import numpy as np

from gpu_util_callback.diagnosis import Diagnosis
from gpu_util_callback.recording.schema import CATEGORIES, TABLES

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000

GPU = {
    "index": 0,
    "nvml_index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA H200",
    "label": "gpu0",
    "used_by_framework": True,
    "memory_total_bytes": 150_000_000_000,
    "compute_capability": [9, 0],
}


class Generated:
    """Builds the tables of one run, stretch by stretch.

    Args:
        seed: of all noise.
        gpus: the manifest's list of GPUs; utilization samples are made for those in use.
        noise: relative standard deviation of step times and waits.
    """

    def __init__(self, seed: int = 0, gpus: list[dict] | None = None, noise: float = 0.05, **facts):
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.now = START_NS
        self.step = 0
        self.facts = {
            "started_ns": START_NS,
            "rank": 0,
            "gpus": gpus or [],
            "host": "node-a",
            "framework": {"name": "tensorflow", "backend": "tensorflow", "version": "2.21.0"},
            "fit": {"batch_size": 32, "steps_per_execution": 1, "input_kind": "tf.data"},
        } | facts
        self._steps: list[dict[str, np.ndarray]] = []
        self._phases: list[tuple] = []
        self._pipeline: list[tuple] = []
        self._busy: list[tuple[int, int, float]] = []  # GPU active: start, end, share
        self._gpu_values: dict[str, list[tuple[int, int, float]]] = {}
        self._marks: dict[str, list[tuple[int, str, float]]] = {}
        self._traced: list[dict[str, int]] = []
        self._kernels: list[tuple] = []
        self._window = 0
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
        duration = body + wait + callbacks + compiles
        starts = self.now + np.concatenate([[0], np.cumsum(duration)[:-1]])
        first = self.step
        self._steps.append(
            {
                "step": np.arange(first, first + count),
                "start_ns": starts,
                "duration_ns": duration,
                "input_get_ns": wait,
                "input_wait_ns": wait,
                "compile_ns": compiles,
                "body_ns": body,
                "gpu_wait_ns": np.zeros(count, np.int64),
                "callbacks_ns": callbacks,
                "batches": np.ones(count, np.int64),
                "estimated": np.full(count, estimated),
                "shape_id": np.full(count, shape_id),
            }
        )
        end = self.now + int(duration.sum())
        idle = int((wait * (1 - gpu_in_wait) + callbacks + compiles).sum())
        self._busy.append((self.now, end, gpu_share * (1 - idle / max(1, end - self.now))))
        self.now, self.step = end, first + count
        return first, self.step

    def phase(
        self, kind: str, seconds: float, *, name: str = "", account: str | None = None, gpu_share: float = 0.0
    ) -> None:
        """Training stands still: a validation, a callback, a checkpoint."""
        if account is None:
            account = "validation" if kind == "validation" else "callbacks"
        end = self.now + round(seconds * 1e9)
        self._phases.append((kind, name or kind, self.now, end, self.step, account, end - self.now, 1))
        self._busy.append((self.now, end, gpu_share))
        self.now = end

    def hook_detail(self, name: str, start_ns: int, end_ns: int, self_ns: int, count: int) -> None:
        """What one callback's batch hooks took, summed over a flush."""
        self._phases.append(("callback", name, start_ns, end_ns, self.step, "", self_ns, count))

    def input_filled(self, start_ns: int, seconds: float) -> None:
        """The first batch of an epoch took so long; a detail of its step's wait."""
        ns = round(seconds * 1e9)
        self._phases.append(("input_setup", "first batch", start_ns, start_ns + ns, self.step, "", ns, 1))

    def epoch(self, start_ns: int) -> None:
        """An epoch that ends now; its row carries the step it ended on, as the recorder's does."""
        self._phases.append(("epoch", "epoch", start_ns, self.now, self.step, "", self.now - start_ns, 1))

    def reading(
        self, *stages: tuple[str, str, float, float, str], batches: int, elements: int = 1, which: str = "train"
    ) -> None:
        """A reading of the pipeline: (stage, op, own ms per batch, parallelism, flags), root last.

        The root stands first in the table, as in the pipeline's model; the stages before it make
        `elements` for each batch.
        """
        for node, (stage, op, ms, parallelism, flags) in enumerate(reversed(stages)):
            self._pipeline.append(
                (
                    self.now,
                    self.step,
                    which,
                    node,
                    node - 1,
                    stage,
                    op,
                    batches * (elements if node else 1),
                    round(ms * MS * batches),
                    parallelism,
                    np.nan,
                    np.nan,
                    flags,
                )
            )

    def slow_map(self, batches: int, ms: float) -> None:
        """A reading of a map that runs one call at a time; eight cores could share its work."""
        self.facts["machine"] = {"cpus": 8, "cpus_allowed": 8}
        self.reading(("map(decode)", "ParallelMapV2", ms, 1.0, "fixed_parallelism"), batches=batches)

    def gpu_value(self, column: str, seconds: float, value: float, gpu: int = 0) -> None:
        """What a column of a GPU reads for the last `seconds`."""
        self._gpu_values.setdefault(f"gpu{gpu}:{column}", []).append((self.now - round(seconds * 1e9), self.now, value))

    def mark(self, group: str, column: str, value: float) -> None:
        """One row of a group of marks, now."""
        self._marks.setdefault(group, []).append((self.now, column, value))

    def trace(self, steps: int, step_ms: float, *, gpu: int = 0, kernels: int = 200, **share: float) -> None:
        """A profiler window over the next `steps` steps; shares of the step by category.

        What is not given is `kernel`.
        """
        length = round(step_ms * MS)
        for i in range(steps):
            row = dict.fromkeys((f"{name}_ns" for name in CATEGORIES), 0)
            for name, part in share.items():
                row[f"{name}_ns"] = round(part * length)
            row["kernel_ns"] = length - sum(row.values())
            self._traced.append(
                {
                    "step": self.step + i,
                    "gpu": gpu,
                    "start_ns": self.now + i * length,
                    "duration_ns": length,
                    **row,
                    "kernel_busy_ns": row["kernel_ns"],
                    "any_busy_ns": row["kernel_ns"],
                    "kernels": kernels,
                    "window": self._window,
                }
            )
        self._window += 1

    def kernel(self, name: str, total_ms: float, tensor_core: str, count: int = 100) -> None:
        """A kernel of the newest window on gpu 0."""
        self._kernels.append(
            (
                self._window - 1,
                0,
                name,
                "",
                count,
                round(total_ms * MS),
                1000,
                10000,
                40.0,
                64.0,
                500.0,
                256.0,
                tensor_core,
            )
        )

    # -- tables --------------------------------------------------------------------------------

    def tables(self) -> dict[str, dict[str, np.ndarray]]:
        steps = {
            name: np.concatenate([part[name] for part in self._steps]).astype(np.int64)
            for name in (self._steps[0] if self._steps else {})
        }
        tables = {
            "steps": steps,
            "phases": _columns(
                self._phases, ("kind", "name", "start_ns", "end_ns", "step", "account", "self_ns", "count")
            ),
            "pipeline": _columns(
                self._pipeline,
                (
                    "time_ns",
                    "step",
                    "which",
                    "node",
                    "parent",
                    "stage",
                    "op",
                    "elements",
                    "processing_ns",
                    "parallelism",
                    "buffered",
                    "buffer_limit",
                    "flags",
                ),
            ),
        }
        if self._traced:
            tables["traced_steps"] = {name: np.array([row[name] for row in self._traced]) for name in self._traced[0]}
        if self._kernels:
            tables["kernels"] = _columns(self._kernels, tuple(TABLES["kernels"]))
        return tables

    def samples(self, hz: float = 10) -> dict[str, dict[str, np.ndarray]]:
        """Samples of each GPU in use, `hz` a second, as the driver would have read them.

        Of a GPU that is not in use only what `gpu_value` says.
        """
        times = np.arange(START_NS, self.now, round(1e9 / hz))
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
            columns = {"time_ns": times, "utilization_pct": values}
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

    def diagnose(self, thresholds: dict | None = None, account: dict | None = None) -> dict:
        """The one-shot diagnosis of all tables and samples."""
        diagnosis = Diagnosis(self.facts, thresholds)
        diagnosis.add(self.tables(), self.samples())
        return diagnosis.result(account=account, now_ns=self.now, ended=True)


def _columns(rows: list[tuple], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    if not rows:
        return {}
    table = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        kind = object if isinstance(column[0], str) else None
        table[name] = np.array(column, dtype=kind)
    return table


def write(run: Generated, log_dir, status: str = "ended", **facts) -> str:
    """Write a generated run as a real recording; returns its path."""
    from gpu_util_callback.recording import Clock, RecordingWriter

    given = {"ended_ns": run.now, "heartbeat_ns": run.now} | run.facts | facts
    writer = RecordingWriter(log_dir, given, clock=Clock())
    for name, table in run.tables().items():
        if table:
            writer.append(name, table)
    for group, block in run.samples().items():
        columns = [name for name in block if name != "time_ns"]
        values = np.stack([block[name] for name in columns], axis=1)
        writer.append_samples(group, columns, block["time_ns"], values)
    writer.flush()
    if status != "live":
        writer.close(status)
    return writer.path
