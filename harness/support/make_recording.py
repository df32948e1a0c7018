"""Recordings made up for tests, written by the real writer.

The numbers follow a script, not a measurement: the facts say `"synthetic": true`. What is true
of them: steps are contiguous, their parts sum up, the account closes, and the GPU samples follow
the steps they fall into.
"""

from pathlib import Path

import numpy as np
from made_up_kernels import HOST_OPS, KERNELS
from made_up_rows import step_table
from made_up_run import MadeUpRun

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.recording import Clock, RecordingWriter
from gpu_util_callback.recording.event_files import ScalarWriter, next_step_offset

MS = 1_000_000
GIB = 2**30
SLOW_STAGE = "map(decode)"
# What a GPU does in a profiled step beside kernels, as shares of the step but for its wait.
SHARES = {
    "copy_h2d": 0.03,
    "copy_d2h": 0.004,
    "copy_d2d": 0.006,
    "collective": 0.05,
    "idle_launch": 0.04,
    "idle_sync": 0.02,
    "other": 0.01,
}
SCENARIOS = ("thirds", "healthy", "slow", "hidden", "host_stall", "no_gpu")


class SyntheticRun(MadeUpRun):
    """A run that grows by `advance`; times start `past_s` ago, or now.

    Args:
        log_dir: becomes a TensorBoard run with a marker and scalars (`scalars=False`: without).
        scenario: "thirds" (healthy, input-bound, healthy), "healthy", "slow" (input-bound
            throughout), "hidden" (a slow input that prefetching hides), "host_stall" (long
            validation, heavy callback), "no_gpu" (healthy, CPU only).
        steps: how many steps the whole run is to have; decides where the thirds are.
        epochs: validation follows each of them.
        windows: (first, stop) step of each profiler window; both within an epoch.
        facts: more of the manifest.
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
        **facts,
    ):
        super().__init__()
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
        self.step, self._epoch_began = 0, self.now
        self._next_sample = self.start
        log_dir = str(log_dir)
        self._scalars = None
        self._offset = next_step_offset(log_dir)
        if scalars and rank == 0:
            self._scalars = ScalarWriter(log_dir, redact=redact)
            self._scalars.marker(self.start / 1e9)
        self.writer = RecordingWriter(
            log_dir, self._facts(rank, world_size, job, fit_index, epochs) | facts, clock=self.clock, redact=redact
        )
        self.path = Path(self.writer.path)
        self.writer.sums = Evidence(self.start) if diagnose else None
        self.now += 120 * MS
        self._phase("input_setup", "iterator", self.start, self.now, account="input_wait")

    @property
    def done(self) -> int:
        """How many steps there are so far."""
        return self.step

    def _facts(self, rank, world_size, job, fit_index, epochs):
        missing = {"source": "NVML", "reason": "no NVIDIA driver on this machine (synthetic)"}
        return {
            "synthetic": True,
            "started_ns": self.start,
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
                "steps_per_epoch": self.per_epoch,
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
                for gpu in range(self.gpus)
            ],
            "machine": {"cpus": 8, "cpus_allowed": 8},
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

    def _gpus_work(self, start_ns, end_ns, share):
        self._sample(end_ns, np.array([start_ns]), np.array([100 * share]))

    def _put_rows(self):
        for name, rows in self.take().items():
            self.writer.append(name, rows)

    def _is_slow(self, steps):
        third = self.total // 3
        if self.scenario == "thirds":
            return (steps >= third) & (steps < 2 * third)
        return np.full(len(steps), self.scenario == "slow")

    def advance(self, steps, flush=True):
        """Add steps (and validation after each full epoch); returns self."""
        end = self.step + steps
        while self.step < end:
            count = min(end - self.step, self.per_epoch - self.step % self.per_epoch, 50_000)
            if self.step % self.per_epoch == 0:
                self._epoch_began = self.now
            self._train(count)
            if self.step % self.per_epoch == 0:
                self._end_epoch()
            self._put_rows()
        if flush:
            self.flush()
        return self

    def _train(self, count):
        """Steps, and what was sampled, profiled and logged meanwhile."""
        columns = self._step_rows(count)
        self._steps.append(columns)
        steps, start, duration, waits = (columns[name] for name in ("step", "start_ns", "duration_ns", "input_wait_ns"))
        end = int(start[-1] + duration[-1])
        self._sample(end, start, 100 * (columns["body_ns"] + columns["gpu_wait_ns"]) / duration)
        for number, (first, stop) in enumerate(self.windows):
            if self.step <= first and stop <= self.step + count:
                rows = slice(first - self.step, stop - self.step)
                self._window(number, steps[rows], start[rows], duration[rows], waits[rows])
        if self._scalars is not None:
            self._write_scalars(columns)
        self.now, self.step = end, self.step + count
        self._read_pipeline(columns)

    def _step_rows(self, count):
        random = self._random
        steps = np.arange(self.step, self.step + count)
        slow = self._is_slow(steps)
        scale = self.step_ns / (24 * MS)

        def jitter(mean, share):
            return np.maximum(0, random.normal(mean, mean * share, count))

        wait = np.where(slow, jitter(38 * MS, 0.05), jitter(0.04 * MS, 0.3)) * scale
        body = jitter(17.5 * MS, 0.02) * scale
        gpu_wait = np.where(slow, jitter(5 * MS, 0.05), jitter(6 * MS, 0.05)) * scale
        callbacks = jitter(0.15 * MS, 0.2) * scale
        compiling = np.zeros(count)
        if self.step == 0:
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
        columns = step_table(self.now, self.step, rest_ns=random.integers(8_000, 16_000, count), **parts)
        if self.scenario == "hidden":  # fetched ahead: long in get_next, never waited for
            ahead = (9 * MS * scale + random.integers(0, MS, count)).astype(np.int64)
            columns["input_get_ns"] = columns["input_wait_ns"] + ahead
        return columns

    def _read_pipeline(self, columns):
        slow = self._is_slow(columns["step"]).mean()
        self.reading(
            ("from_tensor_slices", "TensorSliceDataset", 0.1, 1.0, ""),
            (SLOW_STAGE, "ParallelMapV2", 37.0 * slow + 3.0, 1.0, "fixed_parallelism"),
            ("batch", "BatchDataset", 0.4, 1.0, ""),
            ("prefetch", "Prefetch", 0.002, 1.0, ""),
            batches=len(columns["step"]),
            buffer=(0.0, 2.0),
        )

    def _write_scalars(self, columns):
        ends = columns["start_ns"] + columns["duration_ns"]
        stride = max(1, len(ends) // 200)
        for at in range(0, len(ends), stride):
            last = min(at + stride, len(ends)) - 1
            values = {
                tag: float(columns[name][at : at + stride].mean()) / MS
                for tag, name in (("gpu_util/step_time_ms", "duration_ns"), ("gpu_util/input_wait_ms", "input_wait_ns"))
            }
            self._scalars.points([(self._offset + int(columns["step"][last]), values, ends[last] / 1e9)])

    def _window(self, number, steps, starts, durations, waits):
        """One profiler window: what its steps did on each GPU; on the host where there is none."""
        rows = [values.tolist() for values in (steps, starts, durations, waits)]
        for gpu in range(self.gpus) if self.gpus else (-1,):
            busy_ns = 0
            for step, start, length, wait in zip(*rows, strict=True):
                rest = length - wait
                parts = {name: int(rest * share) for name, share in SHARES.items()} if gpu >= 0 else {}
                parts |= {"idle_input": wait, "idle_host": int(rest * (0.05 + 0.02 * gpu)) if gpu >= 0 else rest}
                self._traced_step(gpu, step, start, length, parts, 50)
                busy_ns += self._traced[-1]["kernel_busy_ns"]
                self._kernels("step_kernels", gpu, 1, self._traced[-1]["kernel_busy_ns"], step)
            self._kernels("kernels", gpu, len(steps), busy_ns)
        self._windows += 1
        start, end = int(starts[0]) - MS, int(starts[-1] + durations[-1]) + MS
        self._phase("profiler_window", f"window {number}", start, end, int(steps[0]))
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
                    "events": 2000 * len(steps),
                    "cost_s": 0.21,
                },
            ]
        )

    def _kernels(self, table, gpu, steps, busy_ns, step=0):
        """Rows of what kept a GPU (or the host) busy in so many steps, or in one."""
        rows = KERNELS if gpu >= 0 else HOST_OPS
        unit = (busy_ns or 30 * MS) / sum(row[2] for row in rows)
        for name, op, weight, calls, shape, tensor_core in rows:
            total, count = unit * weight, calls * steps
            least, most = int(total / count * 0.8), int(total / count * 1.4)
            of_step = (self._windows, step, gpu, name, count, int(total), most)
            whole = (self._windows, gpu, name, op, count, int(total), least, most, *shape, tensor_core)
            self._rows[table].append(of_step if table == "step_kernels" else whole)

    def _end_epoch(self):
        long = self.scenario == "host_stall"
        self.validated(20, 60 * MS if long else 9 * MS, 50_000, share=0.35, name=f"validation {self._epochs + 1}")
        if long:
            self.phase("callback", 0.4, "SlowReport.on_epoch_end")
        else:
            self.phase("checkpoint", 0.025, "ModelCheckpoint.on_epoch_end")
        self._epochs += 1
        self._phase("epoch", f"epoch {self._epochs}", self._epoch_began, self.now)

    # --- what the sampler and the pipeline model saw ----------------------------------------------

    def _sample(self, end, starts, busy):
        """10 Hz up to `end`: each GPU's reading follows the step under way."""
        times = np.arange(self._next_sample, end, 100 * MS)
        if not len(times):
            return
        self._next_sample = int(times[-1]) + 100 * MS
        times = times + self._random.integers(0, 300_000, len(times))
        at = np.clip(np.searchsorted(starts, times, "right") - 1, 0, None)
        for gpu in range(self.gpus):
            columns = self._gpu_columns(gpu, busy[at])
            self._put_samples(f"gpu{gpu}", tuple(columns), times, np.stack(list(columns.values()), axis=1))
        host = np.stack([np.round(20 + 5 * self._random.random(len(times)), 1), np.full(len(times), 6.0 * GIB)], axis=1)
        self._put_samples("host", ("cpu_pct", "memory_used_bytes"), times, host)

    def _gpu_columns(self, gpu, busy):
        noise = self._random.normal(0, 1.5, len(busy))
        used = np.rint(np.clip(busy * 0.97 + noise - 2 * gpu, 0, 100))
        return {
            "utilization_pct": used,
            "memory_utilization_pct": np.rint(used * 0.45),
            "memory_used_bytes": np.full(len(busy), 11.5 * GIB),
            "power_mw": np.rint(90_000 + used * 5_200 + self._random.normal(0, 2_000, len(busy))),
            "temperature_c": np.rint(45 + used * 0.2),
            "sm_clock_mhz": np.full(len(busy), 1_980.0),
        }

    def _put_samples(self, group, names, times, values):
        self.writer.append_samples(group, names, times, values)

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
        if self.writer.sums is not None:
            with self.writer.summed() as evidence:
                diagnosis = judge(Run(self.writer.facts, evidence, self.now, ended))
            self.writer.update(diagnosis=diagnosis)


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
