"""Recordings of any length, written by the real writer as a long run would have written them.

The numbers are made up (the facts say `"synthetic": true`): steps of 5 ms on average that are
starved now and then, a validation every hundred thousand steps, GPU samples at 10 Hz that follow
the steps. What repeats is the noise alone, so that a day of training is written in minutes.
"""

import time
from pathlib import Path

import numpy as np
from made_up_rows import phase_table, step_table
from make_recording import made_up_facts
from scripted_runs import ScriptedTime

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.recording import RecordingWriter
from gpu_util_callback.recording.event_files import ScalarWriter

MS = 1_000_000
GIB = 2**30
HZ = 10
# Steps between two flushes: at 5 ms a segment's worth with 8 GPUs.
CHUNK = 8_000
EPOCH = 100_000
VALIDATION_NS = 10 * 1_000 * MS

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
        tag_scalars: so many points of each series also become scalars in an event file, for
            TensorBoard's own charts of the same data.
        live: leave it open.
    """
    names = list(METRICS)[:metrics]
    random = np.random.default_rng(seed)
    duration = round(step_ms * MS)
    wall = steps * duration * 11 // 10 + (steps // EPOCH) * VALIDATION_NS
    script = ScriptedTime(wall=time.time_ns() - wall)
    clock = script.clock()
    start = now = clock.now()
    facts = made_up_facts(start, gpus, EPOCH)
    scalars = ScalarWriter(str(log_dir))
    scalars.marker(start / 1e9)
    writer = RecordingWriter(str(log_dir), facts, clock=clock)
    evidence = Evidence(start)
    noise = random.normal(size=1 << 18).astype(np.float32)
    stride = max(1, steps // tag_scalars) if tag_scalars else 0
    done, sampled = 0, now
    while done < steps:
        count = min(chunk, steps - done, EPOCH - done % EPOCH)
        slow = (done // 40_000) % 5 == 3
        rows = _steps(done, count, now, duration, slow, _take(noise, random, 3 * count))
        _put(writer, evidence, "steps", rows)
        end = now + int(rows["duration_ns"].sum())
        times = np.arange(sampled, end, 1_000 * MS // HZ)
        sampled = int(times[-1]) + 1_000 * MS // HZ if len(times) else sampled
        for gpu in range(gpus):
            values = _samples(names, times, slow, _take(noise, random, len(names) * len(times)))
            writer.append_samples(f"gpu{gpu}", names, times, values)
            columns = {"time_ns": times, **dict(zip(names, values.T, strict=True))}
            evidence.add({}, {f"gpu{gpu}": columns})
        if stride:
            _add_scalars(scalars, rows, stride)
        done, now = done + count, end
        if done % EPOCH == 0 or done == steps:
            now = _end_of_epoch(writer, evidence, done, now)
        script.advance((now - clock.now()) / 1e9)
        writer.flush()
    writer.update(ended_ns=now)
    writer.update(diagnosis=judge(Run(facts, evidence, now, not live)))
    writer.flush() if live else writer.close("ended")
    scalars.close()
    return Path(writer.path)


def _take(noise: np.ndarray, random: np.random.Generator, count: int) -> np.ndarray:
    """`count` values of the noise, from anywhere in it."""
    begin = int(random.integers(len(noise)))
    return np.take(noise, np.arange(begin, begin + count), mode="wrap")


def _steps(first: int, count: int, now: int, duration: int, slow: bool, noise) -> dict:
    wait_noise, body_noise, rest_noise = np.abs(noise).reshape(3, count)
    wait = ((1.2 * duration if slow else 0.002 * duration) * (1 + 0.1 * wait_noise)).astype(int)
    body = (0.55 * duration * (1 + 0.02 * body_noise)).astype(int)
    gpu_wait = (0.16 * duration * (1 + 0.05 * rest_noise)).astype(int)
    callbacks = np.full(count, duration // 500)
    if first // EPOCH % 3 == 0:
        callbacks[count // 2] += 40 * duration  # one spike in a segment, to be found again
    parts = {"input_wait_ns": wait, "body_ns": body, "gpu_wait_ns": gpu_wait, "callbacks_ns": callbacks}
    return step_table(now, first, rest_ns=duration // 250, **parts)


def _samples(names: list[str], times: np.ndarray, slow: bool, noise: np.ndarray) -> np.ndarray:
    noise = noise.reshape(len(names), len(times))
    values = np.empty((len(times), len(names)))
    for at, name in enumerate(names):
        starved, busy, spread = METRICS[name]
        column = np.maximum(0, (starved if slow else busy) + spread * noise[at])
        if name.endswith("_pct"):
            column = np.minimum(column, 100)
        values[:, at] = np.rint(column) if name.endswith(INTEGERS) else column
    return values


def _put(writer: RecordingWriter, evidence: Evidence, table: str, rows: dict) -> None:
    writer.append(table, rows)
    evidence.add({table: rows})


def _end_of_epoch(writer: RecordingWriter, evidence: Evidence, done: int, now: int) -> int:
    end = now + VALIDATION_NS
    _put(writer, evidence, "phases", phase_table(("validation", "validation", now, end, done, "validation")))
    return end


def _add_scalars(scalars: ScalarWriter, rows: dict, stride: int) -> None:
    """Every `stride`-th step of each drawn series, in milliseconds."""
    at = np.flatnonzero(rows["step"] % stride == 0)
    for index in at.tolist():
        values = {
            f"same/{name.removesuffix('_ns')}_ms": float(rows[name][index]) / MS
            for name in ("duration_ns", "input_wait_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")
        }
        scalars.points([(int(rows["step"][index]), values, rows["start_ns"][index] / 1e9)])
