"""What diagnosing costs: a million steps at once, a thousand more on top of them, and a recording by newer rules.

CPU time of the thread: it is all computation, and what else runs here must not count. `BENCH_ANEW_STEPS` are the
lengths of the recordings that are judged anew, "100000,1000000" by default; ten million take minutes to write.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from generated_runs import GPU, Generated
from made_up_rows import step_table

from gpu_util_callback.diagnosis import Evidence, Run, diagnose, engine, judge
from gpu_util_callback.recording import Clock, RecordingWriter, read_recordings

STEPS = 1_000_000
MORE = 1_000
# What rules read of each GPU; a healthy GPU has all of them, a real one thirty.
COLUMNS = (
    "throttle_thermal_pct",
    "throttle_power_pct",
    "throttle_other_pct",
    "sm_clock_mhz",
    "temperature_c",
    "utilization_other_pct",
    "memory_other_bytes",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_generation",
    "pcie_width",
    "sm_active_pct",
    "allocator_used_bytes",
    "allocator_peak_bytes",
    "memory_used_bytes",
    "power_mw",
)
REPEATS = 7
ANEW_STEPS = tuple(int(steps) for steps in os.environ.get("BENCH_ANEW_STEPS", "100000,1000000").split(","))
STEP_NS, FLUSH_STEPS = 5_000_000, 12_000  # a minute


def long_run(steps: int, gpus: int = 8) -> Generated:
    """Healthy, with slow stretches, validations and a heavy callback here and there."""
    run = Generated(seed=11, gpus=[GPU | {"index": i} for i in range(gpus)])
    part = steps // 20
    for i in range(20):
        begin = run.now
        run.steps(part, step_ms=5, wait_ms=20 if i % 7 == 3 else 0)
        run.phase("validation", 5)
        seconds = (run.now - begin) / 1e9
        for gpu in range(gpus):
            for column in COLUMNS:
                hot = gpu == 3 and i == 9  # one GPU has everything for a while
                run.gpu_value(column, seconds, 50 if hot else 1, gpu)
    return run


def slices(columns: dict, first: int, end: int) -> dict:
    return {name: column[first:end] for name, column in columns.items()}


def written(log_dir: str, steps: int, gpus: int = 2) -> tuple[float, float]:
    """Write a recording whose input is slow now and then, 30 columns a GPU at 10 Hz.

    Returns: CPU seconds of writing and folding, and bytes a step.
    """
    random, clock = np.random.default_rng(0), Clock()
    start = clock.now() - steps * STEP_NS
    used = [GPU | {"index": gpu} for gpu in range(gpus)]
    writer = RecordingWriter(log_dir, {"started_ns": start, "gpus": used}, clock=clock)
    if hasattr(writer, "sums"):
        writer.sums = Evidence(start)
    columns = ["utilization_pct", *COLUMNS, *(f"other_{at}_pct" for at in range(30 - 1 - len(COLUMNS)))]
    took = 0.0
    for first in range(0, steps, FLUSH_STEPS):
        count = min(FLUSH_STEPS, steps - first)
        is_slow = first // FLUSH_STEPS % 7 == 3
        wait = 3_000_000 * is_slow + random.integers(20_000, 90_000, count)
        rows = step_table(start + first * STEP_NS, first=first, input_wait_ns=wait, body_ns=STEP_NS - wait)
        times = start + first * STEP_NS + np.arange(0, count * STEP_NS, 10**8)
        values = {gpu: np.rint(random.normal(80, 5, (len(times), len(columns)))) for gpu in range(gpus)}
        began = time.thread_time()
        writer.append("steps", rows)
        for gpu, samples in values.items():
            writer.append_samples(f"gpu{gpu}", columns, times, samples)
        writer.flush()
        took += time.thread_time() - began
    began = time.thread_time()
    writer.update(ended_ns=start + steps * STEP_NS)
    writer.close("ended")
    took += time.thread_time() - began
    files = [entry for entry in os.scandir(writer.path) if entry.name.startswith("segment")]
    return took, sum(entry.stat().st_size for entry in files) / steps


def anew(steps: int) -> tuple[list[float], float, float]:
    """CPU seconds of judging a recording by newer rules, those of writing it, and the size of what is read."""
    with tempfile.TemporaryDirectory() as folder:
        took, _ = written(folder, steps)
        seconds = []
        for _ in range(REPEATS):
            begin = time.thread_time()
            (recording,) = read_recordings(folder)
            found = diagnose(recording)
            seconds.append(time.thread_time() - begin)
            assert found["rules_version"] == engine.RULES_VERSION and found["spans"] and not recording.problems
        return seconds, took, Path(recording.path, "top.npz").stat().st_size / 1e6


def main() -> dict[str, float]:
    run = long_run(STEPS)
    tables, samples = run.tables(), run.samples(hz=1)
    more = Generated(seed=12, gpus=run.facts["gpus"])
    more.now, more.step = run.now, run.step
    more.steps(MORE, step_ms=5)
    extra = more.tables()["steps"]
    times = np.arange(run.now, more.now, 10**9)
    newer = {
        group: {name: times if name == "time_ns" else np.full(len(times), values[-1]) for name, values in block.items()}
        for group, block in samples.items()
    }

    whole, grow, result = [], [], []
    for _ in range(REPEATS):
        evidence = Evidence(run.facts["started_ns"])
        begin = time.thread_time()
        evidence.add(tables, samples)
        found = judge(Run(run.facts, evidence, run.now))
        whole.append(time.thread_time() - begin)
        begin = time.thread_time()
        evidence.add({"steps": extra}, newer)
        added = time.thread_time()
        judge(Run(run.facts, evidence, more.now))
        result.append(time.thread_time() - added)
        grow.append(time.thread_time() - begin)

    def row(what: str, seconds: list[float], budget: str) -> None:
        median, low, high = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{what:<46}{median * 1e3:9.1f}{low * 1e3:9.1f}{high * 1e3:9.1f}   {budget}")

    print(f"{'CPU time, ms':46}{'median':>9}{'min':>9}{'max':>9}   budget, ms")
    row(f"{STEPS:,} steps at once, 8 GPUs", whole, "2000")
    row(f"{MORE:,} steps more, and the result", grow, "20")
    row("  of it the result", result, "")
    print(f"{len(found['spans'])} spans, {len(found['findings'])} findings")
    anew_ms = {}
    for steps in ANEW_STEPS:
        seconds, took, size = anew(steps)
        row(f"{steps:,} steps by newer rules, 2 GPUs", seconds, f"50; top {size:.2f} MB, written in {took:.1f} s")
        anew_ms[str(steps)] = round(1e3 * statistics.median(seconds), 1)
    return {
        "anew_ms": anew_ms,
        "steps": STEPS,
        "whole_s": round(statistics.median(whole), 3),
        "more": MORE,
        "more_ms": round(1e3 * statistics.median(grow), 1),
    }


if __name__ == "__main__":
    main()
