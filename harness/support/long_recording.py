"""Recordings of any length, written by the real writer as a long run would have written them.

The numbers are made up: steps of 5 ms on average that are starved now and then, a validation every
hundred thousand steps, GPU samples at 10 Hz that follow the steps. A day of training is written in
minutes.
"""

import time
from pathlib import Path

import numpy as np
from made_up_rows import step_table
from make_recording import SyntheticRun
from scripted_runs import ScriptedTime

MS = 1_000_000
GIB = 2**30
# Steps between two flushes: at 5 ms a segment's worth with 8 GPUs.
CHUNK = 8_000
EPOCH = 100_000
VALIDATION_S = 10

# name: (value while the GPU is starved, value while it is busy, noise)
METRICS: dict[str, tuple[float, float, float]] = {
    "utilization_pct": (15, 96, 2),
    "memory_utilization_pct": (6, 41, 2),
    "memory_used_bytes": (34 * GIB, 34 * GIB, 0),
    "memory_process_bytes": (33 * GIB, 33 * GIB, 0),
    "memory_reserved_bytes": (GIB // 2, GIB // 2, 0),
    "memory_other_bytes": (0, 0, 0),
    "power_mw": (180_000, 560_000, 6_000),
    "power_energy_mw": (180_000, 560_000, 3_000),
    "temperature_c": (48, 66, 1),
    "memory_temperature_c": (52, 70, 1),
    "sm_clock_mhz": (1_980, 1_980, 0),
    "sm_clock_max_mhz": (1_980, 1_980, 0),
    "power_limit_mw": (700_000, 700_000, 0),
    "throttle_thermal_pct": (0, 0, 0),
    "throttle_power_pct": (0, 3, 1),
    "throttle_other_pct": (0, 0, 0),
    "pcie_rx_bytes_per_s": (2e7, 4e8, 3e7),
    "pcie_tx_bytes_per_s": (1e6, 9e6, 1e6),
    "nvlink_rx_bytes_per_s": (0, 2e9, 2e8),
    "nvlink_tx_bytes_per_s": (0, 2e9, 2e8),
    "utilization_process_pct": (15, 96, 2),
    "utilization_other_pct": (0, 0, 0),
    "pcie_generation": (5, 5, 0),
    "pcie_width": (16, 16, 0),
    "processes_other": (0, 0, 0),
    "ecc_corrected": (0, 0, 0),
    "sm_active_pct": (9, 88, 2),
    "sm_occupancy_pct": (5, 47, 2),
    "tensor_active_pct": (3, 38, 2),
    "dram_active_pct": (4, 45, 2),
}
INTEGERS = ("_mw", "_c", "_mhz", "_bytes", "utilization_pct")


class LongRun(SyntheticRun):
    """A run of which each GPU has so many sampled columns; of the steps, `tag_scalars` become scalars."""

    def __init__(self, log_dir, steps, gpus, metrics, tag_scalars, **options):
        self.metrics = dict(list(METRICS.items())[:metrics])
        self._stride = max(1, steps // tag_scalars) if tag_scalars else 0
        super().__init__(log_dir, "healthy", steps, gpus, epochs=-(-steps // EPOCH), past_s=0, **options)

    def _step_rows(self, count):
        length, random = self.step_ns, self._random
        wait_noise, body_noise, gpu_noise = np.abs(random.normal(size=(3, count)))
        slow = (self.step // 40_000) % 5 == 3
        callbacks = np.full(count, length // 500)
        if self.step // EPOCH % 3 == 0:
            callbacks[count // 2] += 40 * length  # one spike in a segment, to be found again
        parts = {
            "input_wait_ns": length * (1.2 if slow else 0.002) * (1 + 0.1 * wait_noise),
            "body_ns": 0.55 * length * (1 + 0.02 * body_noise),
            "gpu_wait_ns": 0.16 * length * (1 + 0.05 * gpu_noise),
            "callbacks_ns": callbacks,
        }
        return step_table(self.now, self.step, rest_ns=length // 250, **parts)

    def _gpu_columns(self, gpu, busy):
        columns = {}
        for name, (starved, at_work, spread) in self.metrics.items():
            means = np.where(busy < 50, starved, at_work)
            values = np.maximum(0, means + spread * self._random.normal(size=len(busy)))
            values = np.minimum(values, 100) if name.endswith("_pct") else values
            columns[name] = np.rint(values) if name.endswith(INTEGERS) else values
        return columns

    def _read_pipeline(self, columns):
        """Nothing is known of its pipeline."""

    def _end_epoch(self):
        self.phase("validation", VALIDATION_S)

    def _write_scalars(self, columns):
        """Every so many steps of each drawn series, in milliseconds: for TensorBoard's own charts of the same data."""
        at = np.flatnonzero(columns["step"] % self._stride == 0) if self._stride else ()
        for index in at:
            values = {
                f"same/{name.removesuffix('_ns')}_ms": float(columns[name][index]) / MS
                for name in ("duration_ns", "input_wait_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")
            }
            self._scalars.points([(int(columns["step"][index]), values, columns["start_ns"][index] / 1e9)])


def make_long_recording(
    log_dir,
    steps: int = 10_000_000,
    gpus: int = 8,
    metrics: int = 30,
    *,
    step_ms: float = 5.0,
    seed: int = 0,
    tag_scalars: int = 0,
    live: bool = False,
    chunk: int = CHUNK,
) -> Path:
    """Write a run and return its recording's folder.

    Args:
        metrics: sampled columns of each GPU, at most `len(METRICS)`.
        tag_scalars: so many points of each series also become scalars in an event file.
        live: leave it open.
    """
    wall = round(steps * step_ms * MS * 1.1) + (steps // EPOCH) * VALIDATION_S * 1_000 * MS
    script = ScriptedTime(wall=time.time_ns() - wall)
    run = LongRun(log_dir, steps, gpus, metrics, tag_scalars, step_ms=step_ms, seed=seed, clock=script.clock())
    while run.step < steps:
        run.advance(min(chunk, steps - run.step), flush=False)
        script.advance((run.now - run.clock.now()) / 1e9)
        run.writer.flush()
    return run.flush().path if live else run.close()
