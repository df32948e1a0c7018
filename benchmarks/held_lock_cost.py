"""The demo's second act: an input pipeline in Python that holds the lock all the time.

Whatever gives up the lock on the training thread then waits for it, 5 ms each time; and what our
threads do, the pipeline does not do meanwhile. Plain and recorded fits take turns; a fit's own
first steps, which start the pipeline, are left out. Where the machine scatters by more than we
cost, the processor time of our threads tells more than the rates.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rounds import spread
from threads import KNOWN, OURS, other_threads_us

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DEMO = Path(__file__).resolve().parents[1] / "demo"
BATCH, STEPS, FIRST, PAIRS = 32, 80, 10, 40


def main() -> dict[str, Any]:
    sys.path.insert(0, str(DEMO))
    import keras
    from images import draw, slow_pipeline
    from train import build_model

    from gpu_util_callback import GpuUtilCallback, read_recordings

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == FIRST:
                self.begin = time.perf_counter()
                self.before_us = other_threads_us(OURS)

        def on_train_batch_end(self, batch, logs=None):
            if batch == STEPS - 1:
                self.took_s = time.perf_counter() - self.begin
                self.threads_us = other_threads_us(OURS) - self.before_us

    model = build_model()
    own, shares, rates = [], [], {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        pictures = draw(Path(folder) / "pictures", count=200)
        for number in range(PAIRS + 1):
            order = (False, True) if number % 2 else (True, False)
            for recorded in order:
                clock, log_dir = Clock(), f"{folder}/{number}"
                ours = [GpuUtilCallback(log_dir, report=False)] if recorded else []
                data = slow_pipeline(pictures, BATCH, STEPS)
                model.fit(data, shuffle=False, verbose=0, callbacks=[clock, *ours])
                if not number:  # traces
                    continue
                rates[recorded].append((STEPS - FIRST) / clock.took_s)
                if recorded:
                    shares.append(clock.threads_us / 1e4 / clock.took_s)
                    (recording,) = read_recordings(log_dir)
                    own.append(recording.facts["overhead"]["callback_us_per_step"])
    ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    ratio = spread(ratios)
    plain, threads = statistics.median(rates[False]), spread(shares)
    share = (
        f"{threads['median']:.2f} % of a core [{threads['low']:.2f} … {threads['high']:.2f}]"
        if KNOWN
        else "not measured on this system"
    )
    print(
        f"{PAIRS} pairs of fits of {STEPS} steps: {plain:.1f} steps per second without us, "
        f"×{ratio['median']:.4f} with us [{ratio['low']:.3f} … {ratio['high']:.3f}] (budget "
        f"×0.99); our threads: {share}; own cost as reported {statistics.median(own):.1f} µs a "
        f"step, at most {max(own):.1f} (budget 100)"
    )
    return {
        "pairs": PAIRS,
        "steps_per_s": round(plain, 2),
        "ratio": ratio,
        **({"threads_pct": threads} if KNOWN else {}),
        "own_us": {"median": statistics.median(own), "high": max(own)},
    }


if __name__ == "__main__":
    main()
