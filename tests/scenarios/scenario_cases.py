"""Labelled runs that no made-up job covers: what was injected, where, and nothing else."""

from collections.abc import Iterator

import numpy as np
from generated_runs import GPU, Generated
from job_case import Case
from scoring import Truth

N = 400  # steps of a part of a run
H200 = GPU | {
    "sm_clock_max_mhz": 1980,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "compute_capability": "9.0",
}
TOTAL = GPU["memory_total_bytes"]


def whole(cause: str | None, name: str, steps: int = N, values: dict | None = None, **facts) -> Case:
    """A case that holds for the whole run (or a healthy one, with `cause=None`); what GPU 0 reads all along."""

    def make() -> tuple[Generated, Truth]:
        run = Generated(seed=7, noise=0.1, **{"gpus": [H200]} | facts)
        run.steps(steps, step_ms=30)
        for column, value in (values or {}).items():
            run.gpu_value(column, steps * 0.045, value)
        return run, {} if cause is None else {cause: None}

    return Case(name, make)


def stood_still() -> Case:
    """A lock that is held for two minutes between two steps."""

    def make() -> tuple[Generated, Truth]:
        run = Generated(seed=7, gpus=[H200])
        run.steps(N, step_ms=30)
        start = run.now
        run.now += 120_000_000_000
        standstill = {
            "start_ns": start,
            "end_ns": run.now,
            "seconds": 120.0,
            "step": N,
            "limit_s": 30.0,
            "step_ms": 30.0,
            "thread": "training",
            "place": "`Data.read` at data.py:12",
            "calls": "Lock.acquire",
        }
        run.facts["step_watch"] = {"seconds": 120.0, "times": 1, "standstills": [standstill], "still": False}
        run.steps(N, step_ms=30)
        return run, {"stuck": [(N, N + 1)]}

    return Case("a lock that nobody gives back", make)


def spilled(name: str, system: str, factor: float, watts_then: float, judged: bool = False) -> Case:
    """The memory is full in the middle, and steps take `factor` times as long; the driver moves it to the host?"""

    def build() -> tuple[Generated, Truth]:
        run = Generated(seed=4, gpus=[H200], machine={"system": system})
        bounds = []
        for used, activity, watts, slower in ((0.7, 60, 600, 1.0), (0.99, 12, watts_then, factor), (0.7, 60, 600, 1.0)):
            start = run.now
            bounds.append(run.steps(N, step_ms=30 * slower))
            seconds = (run.now - start) / 1e9
            run.gpu_value("memory_used_bytes", seconds, used * TOTAL)
            run.gpu_value("memory_utilization_pct", seconds, activity)
            run.gpu_value("power_mw", seconds, 1000 * watts)
        return run, {"memory_spill": [bounds[1]]} if judged else {}

    return Case(name, build)


def memory_cases() -> Iterator[Case]:
    """The driver moves memory to the host; a full pool that hits no limit."""
    pool = {"allocator_used_bytes": 0.74 * TOTAL, "allocator_peak_bytes": 0.74 * TOTAL}
    pool |= {"allocator_limit_bytes": 0.92 * TOTAL, "memory_used_bytes": 0.95 * TOTAL}
    yield whole(None, "full pool, no limit hit", values=pool)
    low = {"allocator_limit_bytes": 0.4 * TOTAL, "allocator_peak_bytes": 0.38 * TOTAL}
    yield whole("memory_limit", "low limit, mild", values=low)
    yield spilled("memory spilled on Windows", "Windows", 6, 220, judged=True)
    yield spilled("memory spilled on WSL", "WSL", 4, 220, judged=True)
    yield spilled("memory full and slow on Linux", "Linux", 6, 220)
    yield spilled("memory full, a little slower", "Windows", 1.5, 220)
    yield spilled("memory full and slow at full power", "Windows", 6, 590)


def gpu_cases() -> Iterator[Case]:
    """GPUs that are small in use, unused, lost or faulty; half precision without one."""
    large, traffic = {"parameters": 30_000_000}, {"pcie_rx_bytes_per_s": 2e8, "pcie_tx_bytes_per_s": 3e7}
    full = traffic | {"sm_active_pct": 25, "allocator_peak_bytes": 0.85 * TOTAL}
    yield whole(None, "big batch, full memory", values=full, model=large)
    some = traffic | {"sm_active_pct": 25, "allocator_peak_bytes": 0.3 * TOTAL}
    yield whole("small_batch", "small batch, mild", values=some, model=large)
    few = traffic | {"sm_active_pct": 8, "allocator_peak_bytes": 0.05 * TOTAL}
    tiny = {"model": {"parameters": 20_000}, "fit": {"batch_size": 4096}}
    yield whole("small_model", "small model", values=few, **tiny)
    half = traffic | {"sm_active_pct": 45, "allocator_peak_bytes": 0.2 * TOTAL}
    yield whole(None, "half-full GPU", values=half, model=large)
    unused = [H200 | {"used_by_framework": False, "index": i} for i in range(4)]
    yield whole("cpu_fallback", "CPU build, four GPUs", gpus=unused)
    said = "the GPU is lost: it fell off the bus: no values from it since then"
    yield whole("gpu_lost", "GPU lost", unavailable=[{"source": "gpu0", "cure": "", "reason": said}])
    yield stood_still()
    yield whole(None, "memory errors from before the run", values={"ecc_uncorrected": 2})

    on_cpu = {
        "gpus": [],
        "framework": {"name": "tensorflow", "device": "cpu"},
        "fit": {"batch_size": 32, "mixed_precision": "mixed_float16"},
    }
    stored, computed = ({"machine": {"cpu": cpu, "cpu_float16": cpu == "Xeon"}} for cpu in ("EPYC", "Xeon"))
    yield whole("slow_steps", "float16 on a CPU that stores it", **on_cpu, **stored)
    for name, facts in {
        "float16 on a CPU that computes it": on_cpu | computed,
        "float16 on a CPU of unknown features": on_cpu,
        "bfloat16 on a CPU": on_cpu | stored | {"fit": {"mixed_precision": "mixed_bfloat16"}},
        "float16 on a TPU": on_cpu | stored | {"framework": {"name": "jax", "device": "tpu"}},
    }.items():
        yield whole(None, name, **facts)
    sampled = {"python_in_steps": {"samples": 75, "parts": {"optimizer.step": 0.8, "zero_grad": 0.08, "forward": 0.1}}}
    yield whole("slow_steps", "a step that is mostly its optimizer", **(on_cpu | {"fit": {"batch_size": 32} | sampled}))
    double = {"fit": {"batch_size": 32, "mixed_precision": "float64"}}
    for name, facts in {
        "float64 on a CPU": on_cpu | stored,
        "float64 on a CPU of unknown features": on_cpu | {"framework": {"name": "jax"}},
        "float64 on a GPU": {},
    }.items():
        yield whole("slow_steps", name, **(facts | double))


def piped(name: str, *stages, ahead: bool = True, wait_ms: float | np.ndarray = 6.0) -> Case:
    """Steps of 20 ms that wait for tf.data stages `(name, op, ms, threads, flags)`."""

    def build() -> tuple[Generated, Truth]:
        run = Generated(seed=3, gpus=[GPU])
        span = run.steps(N, step_ms=20.0, wait_ms=wait_ms)
        last = (("prefetch", "Prefetch", 0.0, 1.0, ""),) if ahead else ()
        run.reading(*stages, *last, batches=N)
        return run, {"input_bound": [span]}

    return Case(f"pipeline: {name}", build)


def input_cases() -> Iterator[Case]:
    """Pipelines whose stages are fast enough, or not."""
    jitter = np.tile([*[0.0] * 9, 60.0], N // 10)
    yield piped("fast enough", ("map(decode)", "Map", 3.3, 1.0, "sequential"))
    yield piped("fast on threads", ("map(decode)", "ParallelMap", 60.0, 8.0, ""))
    yield piped("fast and jittery", ("map(decode)", "ParallelMap", 6.0, 2.0, ""), wait_ms=jitter)
    reader = "TFRecordDataset", "TFRecord", 12.0, 1.0, ""
    yield piped("together too slow", reader, ("map(decode)", "Map", 14.0, 1.0, ""))
    yield piped("one too slow", ("map(decode)", "Map", 26.0, 1.0, "sequential"))
    yield piped("nothing ahead", ("map(decode)", "Map", 5.5, 1.0, "sequential"), ahead=False)
    yield piped("batching", ("batch", "BatchV2", 3.0, 1.0, ""), ahead=False)
    yield piped("summed", ("map(decode)", "ParallelMap", 240.0, 8.0, ""))


def epochs(name: str, cause: str, steps: list[int], first_ms: float = 0.0, **facts) -> Case:
    """Epochs of so many steps; the very first batch takes `first_ms`."""

    def build() -> tuple[Generated, Truth]:
        run = Generated(seed=5, gpus=[GPU], fit={"batch_size": 32, "epochs": len(steps)} | facts)
        for number, count in enumerate(steps):
            wait, start = np.zeros(count), run.now
            wait[0] = 0.0 if number else first_ms
            with run.epoch():
                run.steps(count, step_ms=20.0, wait_ms=wait)
            run.input_filled(start, wait[0] / 1e3)
        return run, {cause: None}

    return Case(name, build)


def data_cases() -> Iterator[Case]:
    """Data that are used up, dropped, or end within an epoch."""
    yield epochs("a generator is used up", "data_ended", [N, 2, 2, 2], input_kind="generator")
    drop = {"stage": "skip", "which": "train", "count": 300, "samples": 32, "behind": "map(decode)", "exact": True}
    yield epochs("batches are skipped", "data_waste", [N, N], 8_000.0, input_kind="tf.data", input_drops=[drop])
