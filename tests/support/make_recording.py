"""Recordings made up for tests, written by the real writer.

The numbers follow a script, not a measurement: the facts say `"synthetic": true`. What is true
of them: steps are contiguous, their parts sum up, the account closes, and the GPU samples follow
the steps they fall into.
"""

from pathlib import Path

import numpy as np
from made_up_kernels import HOST_OPS, KERNELS
from made_up_rows import phase_table, step_table

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.recording import Clock, RecordingWriter
from gpu_util_callback.recording.event_files import ScalarWriter, next_step_offset

MS = 1_000_000
GIB = 2**30
SLOW_STAGE = "map(decode)"
SCENARIOS = ("thirds", "healthy", "slow", "hidden", "host_stall", "no_gpu")


def made_up_facts(start_ns: int, gpus: int, steps_per_epoch: int, epochs: int | None = None) -> dict:
    """What the manifest of a made-up run says of its program and machine."""
    return {
        "synthetic": True,
        "started_ns": start_ns,
        "world_size": 1,
        "fit_index": 0,
        "framework": {
            "name": "tensorflow",
            "version": "0.synthetic",
            "keras": "0.synthetic",
            "backend": "tensorflow",
            "python": "3.11",
        },
        "model": {"name": "synthetic", "parameters": 25_000_000},
        "fit": {
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "batch_size": 64,
            "steps_per_execution": 1,
            "jit_compile": False,
            "run_eagerly": False,
            "input_kind": "tf.data",
            "timing": "graph",
            "mixed_precision": False,
        },
        "gpus": [
            {
                "index": gpu,
                "nvml_index": gpu,
                "uuid": f"GPU-synthetic-{gpu}",
                "name": "Synthetic GPU 80GB",
                "used_by_framework": True,
                "memory_total_bytes": 80 * GIB,
                "compute_capability": "9.0",
                "pci_bus_id": f"00000000:0{gpu}:00.0",
                "label": f"GPU {gpu}",
            }
            for gpu in range(gpus)
        ],
        "machine": {"cpus": 8, "cpus_allowed": 8},
    }


class SyntheticRun:
    """A run that grows by `advance`; times start `past_s` ago, or now.

    Args:
        log_dir: becomes a TensorBoard run with a marker and scalars (`scalars=False`: without).
        scenario: "thirds" (healthy, input-bound, healthy), "healthy", "slow" (input-bound
            throughout), "hidden" (a slow input that prefetching hides), "host_stall" (long
            validation, heavy callback), "no_gpu" (healthy, CPU only).
        steps: how many steps the whole run is to have; decides where the thirds are.
        epochs: validation follows each of them.
        windows: (first, stop) step of each profiler window; both within an epoch.
    """

    def __init__(
        self,
        log_dir,
        scenario="thirds",
        steps=600,
        gpus=2,
        *,
        epochs=3,
        seed=0,
        rank=0,
        world_size=1,
        job=None,
        fit_index=0,
        step_ms=24.0,
        past_s=None,
        redact=False,
        scalars=True,
        diagnose=True,
        clock=None,
        windows=(),
    ):
        if scenario not in SCENARIOS:
            raise ValueError(f"scenario is one of {', '.join(SCENARIOS)}")
        self.scenario, self.total, self.seed = scenario, steps, seed
        self.gpus = 0 if scenario == "no_gpu" else gpus
        self.step_ns = round(step_ms * MS)
        self.windows = list(windows)
        self.per_epoch = max(1, -(-steps // epochs))
        self.clock = clock or Clock()
        self._random = np.random.default_rng(seed)
        past_ns = round((steps * step_ms * 3e-3 + 5 if past_s is None else past_s) * 1e9)
        self.start = self.clock.now() - past_ns
        self.now = self.start
        self.done = self._epoch_began = 0
        self._next_sample = self.start
        log_dir = str(log_dir)
        self._scalars = None
        offset = next_step_offset(log_dir)
        if scalars and rank == 0:
            self._scalars = ScalarWriter(log_dir, redact=redact)
            self._scalars.marker(self.start / 1e9)
        self._offset = offset
        self.writer = RecordingWriter(
            log_dir, self._facts(rank, world_size, job, fit_index, epochs), clock=self.clock, redact=redact
        )
        self.path = Path(self.writer.path)
        self._evidence = Evidence(self.start) if diagnose else None
        self._setup()

    def _facts(self, rank, world_size, job, fit_index, epochs):
        missing = {"source": "NVML", "reason": "no NVIDIA driver on this machine (synthetic)"}
        return made_up_facts(self.start, self.gpus, self.per_epoch, epochs) | {
            "scenario": self.scenario,
            "rank": rank,
            "world_size": world_size,
            "job": job,
            "job_source": "argument" if job else None,
            "fit_index": fit_index,
            "scalar_step_offset": self._offset,
            "unavailable": [missing | {"cure": "record on a machine with a GPU"}] if self.scenario == "no_gpu" else [],
            "overhead": {"callback_us_per_step": None, "sampler_cpu_pct": None, "windows_s": 0.0},
        }

    # --- what happens on the training thread ------------------------------------------------------

    def _phase(self, kind, name, start, end, account, step=None):
        self._put("phases", phase_table((kind, name, start, end, self.done if step is None else step, account)))

    def _put(self, table, columns):
        self.writer.append(table, columns)
        if self._evidence is not None:
            self._evidence.add({table: columns})

    def _setup(self):
        end = self.now + 120 * MS
        self._phase("input_setup", "iterator", self.now, end, "input_wait")
        self.now = end

    def _is_slow(self, steps):
        third = self.total // 3
        if self.scenario == "thirds":
            return (steps >= third) & (steps < 2 * third)
        return np.full(len(steps), self.scenario == "slow")

    def advance(self, steps, flush=True):
        """Add steps (and validation after each full epoch); returns self."""
        remaining = steps
        while remaining > 0:
            left = self.per_epoch - self.done % self.per_epoch
            count = min(remaining, left, 50_000)
            if self.done % self.per_epoch == 0:
                self._epoch_began = self.now
            self._steps(count)
            remaining -= count
            if self.done % self.per_epoch == 0:
                self._end_of_epoch(self.done // self.per_epoch - 1)
        if flush:
            self.flush()
        return self

    def _steps(self, count):
        random = self._random
        steps = np.arange(self.done, self.done + count)
        slow = self._is_slow(steps)
        scale = self.step_ns / (24 * MS)

        def jitter(mean, share):
            return np.maximum(0, random.normal(mean, mean * share, count))

        wait = np.where(slow, jitter(38 * MS, 0.05), jitter(0.04 * MS, 0.3)) * scale
        body = jitter(17.5 * MS, 0.02) * scale
        gpu_wait = np.where(slow, jitter(5 * MS, 0.05), jitter(6 * MS, 0.05)) * scale
        callbacks = jitter(0.15 * MS, 0.2) * scale
        compiling = np.zeros(count)
        if self.done == 0:
            compiling[0] = 900 * MS * scale
        if self.scenario == "host_stall":
            callbacks[steps % 50 == 49] += 120 * MS * scale
        parts = {
            "input_wait_ns": wait,
            "compile_ns": compiling,
            "body_ns": body,
            "gpu_wait_ns": gpu_wait,
            "callbacks_ns": callbacks,
        }
        columns = step_table(self.now, self.done, rest_ns=random.integers(8_000, 16_000, count), **parts)
        start, duration = columns["start_ns"], columns["duration_ns"]
        if self.scenario == "hidden":  # fetched ahead: long in get_next, never waited for
            ahead = (9 * MS * scale + random.integers(0, MS, count)).astype(np.int64)
            columns["input_get_ns"] = columns["input_wait_ns"] + ahead
        self._put("steps", columns)
        busy = (body + gpu_wait) / duration
        end = int(start[-1] + duration[-1])
        self._sample(end, start, np.clip(100 * busy, 0, 100))
        self._stages(count, int(slow.sum()), end)
        for number, (first, stop) in enumerate(self.windows):
            if self.done <= first and stop <= self.done + count:
                at = slice(first - self.done, stop - self.done)
                waits = columns["input_wait_ns"][at]
                self._window(number, steps[at], start[at], duration[at], waits)
        if self._scalars is not None:
            self._write_scalars(steps, start, duration, columns["input_wait_ns"])
        self.done += count
        self.now = end

    def _write_scalars(self, steps, start, duration, waits):
        count = len(steps)
        stride = max(1, count // 200)
        for at in range(0, count, stride):
            some = slice(at, at + stride)
            last = min(at + stride, count) - 1
            values = {
                "gpu_util/step_time_ms": float(duration[some].mean()) / MS,
                "gpu_util/input_wait_ms": float(waits[some].mean()) / MS,
            }
            end_s = (start[last] + duration[last]) / 1e9
            self._scalars.points([(self._offset + int(steps[last]), values, end_s)])

    def _window(self, number, steps, starts, durations, waits):
        """One profiler window: what its steps did on each GPU; on the host where there is none."""
        count = len(steps)
        rest = durations - waits
        for gpu in range(self.gpus) if self.gpus else (-1,):
            shares = {
                "copy_h2d": 0.03,
                "copy_d2h": 0.004,
                "copy_d2d": 0.006,
                "collective": 0.05,
                "idle_launch": 0.04,
                "idle_sync": 0.02,
                "other": 0.01,
            }
            parts = {name: (rest * (share if gpu >= 0 else 0)).astype(np.int64) for name, share in shares.items()}
            parts["idle_input"] = waits
            parts["idle_host"] = (rest * (0.05 + 0.02 * gpu)).astype(np.int64)
            parts["kernel"] = durations - sum(parts.values())
            if gpu < 0:
                parts["idle_host"], parts["kernel"] = rest, np.zeros(count, np.int64)
            busy = parts["kernel"] + parts["collective"]
            self._put(
                "traced_steps",
                {
                    "step": steps,
                    "gpu": np.full(count, gpu),
                    "start_ns": starts,
                    "duration_ns": durations,
                    **{f"{name}_ns": ns for name, ns in parts.items()},
                    "kernel_busy_ns": busy,
                    "any_busy_ns": busy,
                    "kernels": np.full(count, 50),
                    "window": np.full(count, number),
                    "batches": np.ones(count),
                },
            )
            self._put("kernels", self._kernels(number, gpu, count, int(busy.sum())))
            self._put_step_kernels(number, gpu, steps, busy)
        start, end = int(starts[0]) - MS, int(starts[-1] + durations[-1]) + MS
        self._phase("profiler_window", f"window {number}", start, end, "", step=int(steps[0]))
        earlier = self.writer.facts.get("windows", [])
        self.writer.update(
            windows=[
                *earlier,
                {
                    "window": number,
                    "first_step": int(steps[0]),
                    "stop_step": int(steps[-1]) + 1,
                    "start_ns": start,
                    "end_ns": end,
                    "profile": f"2026_01_01_00_00_0{number}_step_{steps[0]}",
                    "events": 2000 * count,
                    "cost_s": 0.21,
                },
            ]
        )

    def _put_step_kernels(self, number, gpu, steps, busy):
        for step, ns in zip(steps, busy, strict=True):
            kernels = self._kernels(number, gpu, 1, int(ns))
            self._put(
                "step_kernels",
                {
                    "step": np.full(len(kernels["name"]), step),
                    **{name: kernels[name] for name in ("window", "gpu", "name", "count", "total_ns", "max_ns")},
                },
            )

    @staticmethod
    def _kernels(number, gpu, steps, busy_ns):
        rows = KERNELS if gpu >= 0 else HOST_OPS
        weights = np.array([row[2] for row in rows], float)
        total = (busy_ns or 30 * MS) * weights / weights.sum()
        each = np.array([row[3] for row in rows]) * steps
        return {
            "window": np.full(len(rows), number),
            "gpu": np.full(len(rows), gpu),
            "name": [row[0] for row in rows],
            "op": [row[1] for row in rows],
            "count": each,
            "total_ns": total.astype(np.int64),
            "min_ns": (total / each * 0.8).astype(np.int64),
            "max_ns": (total / each * 1.4).astype(np.int64),
            **{
                name: np.array([row[4][at] for row in rows], float)
                for at, name in enumerate(("occupancy_pct", "registers", "blocks", "threads_per_block"))
            },
            "tensor_core": [row[5] for row in rows],
        }

    def _end_of_epoch(self, epoch):
        began = self.now
        long = self.scenario == "host_stall"
        each = (60 if long else 9) * MS
        count = 20
        starts = began + np.arange(count) * each
        self._put(
            "validation_steps",
            {
                "step": np.full(count, self.done),
                "start_ns": starts,
                "duration_ns": np.full(count, each),
                "input_wait_ns": np.full(count, 50_000),
            },
        )
        end = began + count * each
        self._phase("validation", f"validation {epoch + 1}", began, end, "validation")
        self._sample(end, np.array([began]), np.array([35.0]))
        saved = end + (400 if long else 25) * MS
        kind = "callback" if long else "checkpoint"
        name = "SlowReport.on_epoch_end" if long else "ModelCheckpoint.on_epoch_end"
        self._phase(kind, name, end, saved, "callbacks")
        self._sample(saved, np.array([end]), np.array([0.0]))
        self._phase("epoch", f"epoch {epoch + 1}", self._epoch_began, saved, "")
        self.now = saved

    # --- what the sampler and the pipeline model saw ----------------------------------------------

    def _sample(self, end, starts, busy):
        """10 Hz up to `end`: each GPU's reading follows the step under way."""
        times = np.arange(self._next_sample, end, 100 * MS)
        if not len(times):
            return
        self._next_sample = int(times[-1]) + 100 * MS
        times = times + self._random.integers(0, 300_000, len(times))
        at = np.clip(np.searchsorted(starts, times, "right") - 1, 0, None)
        names = (
            "utilization_pct",
            "memory_utilization_pct",
            "memory_used_bytes",
            "power_mw",
            "temperature_c",
            "sm_clock_mhz",
        )
        for gpu in range(self.gpus):
            noise = self._random.normal(0, 1.5, len(times))
            used = np.rint(np.clip(busy[at] * 0.97 + noise - 2 * gpu, 0, 100))
            columns = (
                used,
                np.rint(used * 0.45),
                np.full(len(times), 11.5 * GIB),
                np.rint(90_000 + used * 5_200 + self._random.normal(0, 2_000, len(times))),
                np.rint(45 + used * 0.2),
                np.full(len(times), 1_980.0),
            )
            values = np.stack(columns, axis=1)
            self._put_samples(f"gpu{gpu}", names, times, values)
        host = np.stack([np.round(20 + 5 * self._random.random(len(times)), 1), np.full(len(times), 6.0 * GIB)], axis=1)
        self._put_samples("host", ("cpu_pct", "memory_used_bytes"), times, host)

    def _put_samples(self, group, names, times, values):
        self.writer.append_samples(group, names, times, values)
        if self._evidence is not None:
            columns = {name: values[:, at] for at, name in enumerate(names)}
            self._evidence.add({}, {group: {"time_ns": times, **columns}})

    def _stages(self, count, slow, now):
        stages = (
            ("Prefetch", "prefetch", -1, 0.002, 1, ""),
            ("BatchDataset", "batch", 0, 0.4, 1, ""),
            ("ParallelMapV2", SLOW_STAGE, 1, 37.0 * slow / count + 3.0, 1, "fixed_parallelism"),
            ("TensorSliceDataset", "from_tensor_slices", 2, 0.1, 1, ""),
        )
        rows = len(stages)
        self._put(
            "pipeline",
            {
                "time_ns": np.full(rows, now),
                "step": np.full(rows, self.done + count),
                "which": ["train"] * rows,
                "node": np.arange(rows),
                "parent": [stage[2] for stage in stages],
                "stage": [stage[1] for stage in stages],
                "op": [stage[0] for stage in stages],
                "elements": np.full(rows, count),
                "processing_ns": [round(stage[3] * MS * count) for stage in stages],
                "parallelism": [float(stage[4]) for stage in stages],
                "buffered": [0.0] + [np.nan] * (rows - 1),
                "buffer_limit": [2.0] + [np.nan] * (rows - 1),
                "flags": [stage[5] for stage in stages],
            },
        )

    # --- the file ---------------------------------------------------------------------------------

    def flush(self):
        """Write everything so far, with the diagnosis so far."""
        self._diagnose(ended=False)
        self.writer.flush()
        if self._scalars is not None:
            self._scalars.flush()
        return self

    def close(self, status="ended"):
        """End the run where it stands; returns the recording's path."""
        self.writer.update(ended_ns=self.now)
        self._diagnose(ended=True)
        self.writer.close(status)
        if self._scalars is not None:
            self._scalars.close()
        return self.path

    def _diagnose(self, ended):
        if self._evidence is not None:
            self.writer.update(diagnosis=judge(Run(self.writer.facts, self._evidence, self.now, ended)))


def make_recording(log_dir, scenario="thirds", steps=600, gpus=2, live=False, **options) -> Path:
    """Write a whole synthetic recording and return its folder.

    `live=True` leaves it open: its status is "live" as long as this process lives and half a
    minute has not passed. Use `SyntheticRun` for one that grows. Options are `SyntheticRun`'s.
    """
    run = SyntheticRun(log_dir, scenario, steps, gpus, **options)
    chunk = 4_000 if steps <= 100_000 else 12_000  # of a long run, about a segment at a time
    while run.done < steps:
        run.advance(min(chunk, steps - run.done), flush=False)
        run.writer.flush()
    if live:
        run.flush()
        return run.path
    return run.close()
