"""Many short fits of one callback: what each costs beyond plain Keras, and what they leave."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FITS, BLOCK, STEPS = 1000, 10, 10
CLOCKS = {
    "CPU time of the process": time.process_time,
    "of it, the training thread": time.thread_time,
    "wall time": time.perf_counter,
}


def main() -> dict:
    import keras
    import numpy as np

    from gpu_util_callback import GpuUtilCallback, read_recordings

    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((32 * STEPS, 8), np.float32)

    def fit(callbacks: list) -> None:
        model.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=callbacks)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        callback = GpuUtilCallback(folder)
        for callbacks in ([], [callback], [], [callback]):  # imports, traces, the first recording
            fit(callbacks)
        spent: dict[tuple[str, bool], list[float]] = {}
        before = resident_mb()
        for _ in range(FITS // BLOCK):  # alternating: the machine is the same for both
            for recorded in (False, True):
                start = {name: clock() for name, clock in CLOCKS.items()}
                for _ in range(BLOCK):
                    fit([callback] if recorded else [])
                for name, clock in CLOCKS.items():
                    each_ms = 1e3 * (clock() - start[name]) / BLOCK
                    spent.setdefault((name, recorded), []).append(each_ms)
        grown = resident_mb() - before
        recordings = closed(folder, read_recordings)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    print(f"{FITS} fits of {STEPS} steps, in turns with as many plain ones", flush=True)
    figures: dict = {"fits": FITS, "steps": STEPS}
    for name in CLOCKS:
        plain, ours = (np.array(spent[name, recorded]) for recorded in (False, True))
        more = ours - plain
        low, mid, high = np.percentile(more, [25, 50, 75])
        figures[name] = {
            "plain_ms": round(float(np.median(plain)), 2),
            "added_ms": round(mid, 2),
            "low": round(low, 2),
            "high": round(high, 2),
        }
        print(
            f"  {name:28} {np.median(plain):7.2f} ms a fit, {mid:+.2f} ms recorded "
            f"(quartiles {low:+.2f} to {high:+.2f})"
        )
    steps = [one.step_count for one in recordings]
    each = size / max(1, sum(steps))
    print(
        f"  recordings: {len(recordings)} ({', '.join(f'{n:,} steps' for n in steps)}); "
        f"{len(files)} files, {size / 1e3:.0f} kB ({each:.0f} bytes a step)"
    )
    verdicts = said.getvalue().count("gpu-util:")
    print(f"  resident memory {grown:+.0f} MB meanwhile; verdicts printed: {verdicts}")
    return {**figures, "recordings": len(recordings), "files": len(files), "bytes": size, "grown_mb": round(grown, 1)}


def closed(folder: str, read_recordings) -> list:
    """The recordings, once the last one is closed."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = read_recordings(folder)
        if all(one.status != "live" for one in found):
            break
        time.sleep(0.2)
    return found


def resident_mb() -> float:
    import psutil

    return psutil.Process().memory_info().rss / 1e6
