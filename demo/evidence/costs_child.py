"""Measures what recording costs, in a process of its own: `python -m evidence.costs_child`."""

from __future__ import annotations

import threading
import time
import traceback
from pathlib import Path
from typing import Any

from evidence.job import Job, answer, run_as_process

BLOCK_S = 0.8
WINDOW_S = 0.3  # long enough for some of GPM's samples at 10 Hz


def measure(job: Job) -> dict[str, Any]:
    """All figures; each part that fails says so and loses no other."""
    import keras

    from evidence.child import play_or_require_gpu, step_seconds
    from evidence.device import Device
    from evidence.latencies import call_latencies
    from evidence.workloads import healthy

    found: dict[str, Any] = {"keras": keras.__version__}
    found["idle"] = _part(call_latencies)
    answer(job, found)
    keras.utils.set_random_seed(3)
    device = Device()
    play_or_require_gpu(job, device)
    found["device"] = {"name": device.name, "compute_capability": device.capability}
    workload = healthy(device)
    step_s = step_seconds(workload)
    found["step_ms"] = round(1e3 * step_s, 3)
    found["loaded"] = _part(_loaded, workload, step_s)
    answer(job, found)
    for hz in (1, 10, 50):
        found[f"{hz} Hz"] = _part(_alternating, job, device, workload, step_s, hz)
        answer(job, found)
    found["windows"] = _part(_windows, job, device, workload, step_s)
    return found


def _part(function: Any, *args: Any) -> dict[str, Any]:
    try:
        return function(*args)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _loaded(workload: Any, step_s: float) -> dict[str, Any]:
    """The same calls while a model trains."""
    from evidence.latencies import call_latencies

    result: dict[str, Any] = {}
    over = threading.Event()
    thread = threading.Thread(target=lambda: result.update(_part(call_latencies, over)))
    thread.start()
    began = time.perf_counter()
    while thread.is_alive() and time.perf_counter() - began < 15:
        steps = max(10, int(4 / step_s))
        workload.model.fit(workload.batches(steps), shuffle=False, verbose=0)
    over.set()
    thread.join()
    return result


def _alternating(job: Job, device: Any, workload: Any, step_s: float, hz: float) -> dict:
    from evidence.alternation import Blocks, ratio
    from gpu_util_callback import GpuUtilCallback

    block = max(10, int(BLOCK_S / step_s))
    blocks = max(5, int(job.seconds / (block * step_s))) | 1
    callback = GpuUtilCallback(f"{job.log_dir}/{hz}hz", sample_hz=hz, trace="off", report=False)
    timed = Blocks(device, block, callback)
    workload.model.fit(workload.batches(blocks * block + 1), shuffle=False, verbose=0, callbacks=[callback, timed])
    return {"block_steps": block, **ratio(timed.seconds)}


def _windows(job: Job, device: Any, workload: Any, step_s: float) -> dict:
    """A window in every other block: what it costs, and what GPM says meanwhile."""
    from evidence.alternation import SKIPPED, Blocks, ratio
    from gpu_util_callback import GpuUtilCallback
    from gpu_util_callback.backends.base import profiler_session_for

    session = profiler_session_for(job.backend)
    if session is None:
        return {"absent": f"the callback takes no windows on the {job.backend} backend"}
    timings = _timed(session)
    length = max(5, min(40, int(WINDOW_S / step_s)))
    block = max(4 * length, int(2 * BLOCK_S / step_s))
    blocks = max(5, int(job.seconds / (block * step_s))) | 1
    ranges = [(start, start + length) for start in (int((k + SKIPPED) * block) + 2 for k in range(2, blocks, 2))]
    log_dir = f"{job.log_dir}/windows"
    callback = GpuUtilCallback(log_dir, trace=ranges, report=False)
    timed = Blocks(device, block)
    workload.model.fit(workload.batches(blocks * block + 1), shuffle=False, verbose=0, callbacks=[callback, timed])
    on = [k % 2 == 0 and k >= 2 for k in range(len(timed.seconds))]  # as `ranges`
    marked = [(flag, seconds) for flag, (_, seconds) in zip(on, timed.seconds, strict=True)]
    added = ratio(marked)
    steps = block - int(SKIPPED * block)
    recorded = _recorded(log_dir)
    if not recorded["windows"]:
        reasons = [entry["reason"] for entry in recorded["unavailable"] or ()]
        recorded["error"] = "no window was recorded: " + ("; ".join(reasons) or "nobody says why")
    return {
        "block_steps": block,
        "window_steps": length,
        **added,
        "added_ms_a_window": round(added.get("added_us", 0.0) * steps / 1e3, 2),
        **{name: _spread_ms(values) for name, values in timings.items()},
        **recorded,
    }


def _timed(session: Any) -> dict[str, list[float]]:
    """Seconds of each start, stop and reading of a window, from now on."""
    from gpu_util_callback.profiling.window_reader import WindowReader

    timings: dict[str, list[float]] = {}

    def watch(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)
        kept = timings.setdefault(label, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                kept.append(time.perf_counter() - began)

        setattr(owner, name, timed)

    watch(session, "start", "start_ms")
    if hasattr(session, "halt"):  # what of it the training thread has to do
        watch(session, "halt", "halt_ms")
    watch(session, "stop", "stop_ms")
    watch(WindowReader, "read", "read_ms")
    return timings


def _spread_ms(values: list[float]) -> dict[str, float]:
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(values),
        "first": round(1e3 * values[0], 2),
        "p50": round(1e3 * ordered[len(ordered) // 2], 2),
        "max": round(1e3 * ordered[-1], 2),
    }


def _recorded(log_dir: str) -> dict[str, Any]:
    """From the recording: sizes of windows, and GPM inside of them, beside them and behind them."""
    import numpy as np

    from gpu_util_callback import read_recordings

    recording = next(iter(read_recordings(log_dir)))
    kinds = ("*.xplane.pb", "*.pt.trace.json.gz")
    files = [path.stat().st_size for kind in kinds for path in Path(log_dir).rglob(kind)]
    phases = recording.phases
    mine = phases["kind"] == "profiler_window"
    spans = list(zip(phases["start_ns"][mine].tolist(), phases["end_ns"][mine].tolist(), strict=True))
    found: dict[str, Any] = {
        "file_kb": round(sum(files) / len(files) / 1e3, 1) if files else None,
        "windows": len(spans),
        "overhead": recording.facts.get("overhead"),
        "unavailable": recording.facts.get("unavailable"),
    }
    block = recording.samples.get("gpu0/gpm")
    if block is None or not spans:
        return {**found, "gpm": None}
    times, values = block["time_ns"], block["sm_active_pct"]
    second = 1_000_000_000
    where = np.zeros(len(times), int)  # 0 beside, 1 inside, 2 in the second behind
    for start, end in spans:
        where[(times > end) & (times <= end + second) & (where == 0)] = 2
        where[(times >= start) & (times <= end)] = 1
    gaps = np.diff(times) / 1e6
    found["gpm"] = {
        name: {
            "samples": int((where == code).sum()),
            "absent": int(np.isnan(values[where == code]).sum()),
            "sm_active_pct": _mean(values[where == code]),
        }
        for code, name in enumerate(("beside", "inside", "behind"))
    }
    found["gpm"]["longest_gap_ms"] = round(float(gaps.max()), 1) if len(gaps) else None
    found["gpm"]["usual_gap_ms"] = round(float(np.median(gaps)), 1) if len(gaps) else None
    return found


def _mean(values: Any) -> float | None:
    import numpy as np

    known = values[np.isfinite(values)]
    return round(float(known.mean()), 2) if len(known) else None


if __name__ == "__main__":
    run_as_process(measure)
