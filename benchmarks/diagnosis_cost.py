"""What diagnosing costs: a million steps at once, and a thousand more on top of them.

CPU time of the thread: it is all computation, and what else runs here must not count.
"""

import statistics
import time

import numpy as np
from generated_runs import GPU, Generated

from gpu_util_callback.diagnosis import Evidence, Run, judge

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
    return {
        "steps": STEPS,
        "whole_s": round(statistics.median(whole), 3),
        "more": MORE,
        "more_ms": round(1e3 * statistics.median(grow), 1),
    }


if __name__ == "__main__":
    main()
