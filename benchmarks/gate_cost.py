"""What `gpu-util report --baseline` finds in pairs of real fits, with and without a slowdown.

A few processes record fits of a small model in turns: as it is, and with each step made longer by
a delay of 5 % of the step itself. One model keeps the CPU busy, so that whatever else runs on the
machine shows in its steps; the others wait for a half or more of a step, as for a GPU; beside every
other process of the last, a program copies memory all the time. Every fit is then compared with
every unchanged fit of another process, as a check in CI compares a commit with its baseline.
`BENCH_GATE_KEEP` names a folder to keep the fits in and to take them from.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Milliseconds that a step waits, processes, and fits of each kind a process.
MODELS = {
    "CPU": (0, 6, 5),
    "waiting": (4, 4, 4),
    "convolutions": (2, 4, 4),
    "deep": (3, 3, 4),
    "attention": (3, 3, 4),
    "normalized": (3, 4, 4),
    "neighbour": (3, 4, 3),
}
STEPS = 2000
LIMIT = 5.0
SLOWDOWN = 0.05
OUTCOMES = ("slower", "within", "unresolved")
SEVERAL = 5  # baseline runs with which a run is compared
REPEATS = 5  # runs on both sides of a comparison of repeats


def record(folder: Path, process: int, fits: int, wait_ms: int) -> None:
    """Record a process's fits, an unchanged one and a slower one in turns."""
    import keras
    import numpy as np
    import tensorflow as tf
    from timed_fit import pause

    from gpu_util_callback import GpuUtilCallback

    class Delay(keras.callbacks.Callback):
        """Makes each step longer by a share of itself."""

        def __init__(self, share: float):
            super().__init__()
            self.share, self.ended = share, 0.0

        def on_train_begin(self, logs=None):
            self.ended = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            until = now + self.share * (now - self.ended)
            while now < until:
                now = time.perf_counter()
            self.ended = now

    class Waiting(keras.Sequential):
        """A model whose step waits inside the compiled function, as for a device."""

        def train_step(self, data):
            x, y = data
            return super().train_step((pause(tf.ensure_shape(x, (32, 64)), wait_ms), y))

    x = np.random.default_rng(0).normal(size=(32 * STEPS, 64)).astype("float32")
    for fit, (kind, share) in itertools.product(range(fits), (("same", 0.0), ("slower", SLOWDOWN))):
        keras.utils.set_random_seed(1)
        if folder.name == "convolutions":
            image = keras.layers.Reshape((8, 8, 1))
            hidden = [image, keras.layers.Conv2D(24, 3, activation="relu"), keras.layers.Flatten()]
        elif folder.name == "attention":
            inner = keras.Input((8, 8))
            seen = keras.layers.MultiHeadAttention(2, 4)(inner, inner)
            attend = keras.Model(inner, keras.layers.LayerNormalization()(seen + inner))
            hidden = [keras.layers.Reshape((8, 8)), attend, keras.layers.Flatten()]
        elif folder.name == "normalized":
            hidden = [keras.layers.Reshape((16, 4)), keras.layers.Conv1D(8, 3)]
            hidden += [keras.layers.BatchNormalization(), keras.layers.GlobalAveragePooling1D()]
        elif folder.name == "deep":
            hidden = [keras.layers.Dense(48, "gelu") for _ in range(6)]
        else:
            hidden = [keras.layers.Dense(256, "relu") for _ in range(2)]
        of = Waiting if wait_ms else keras.Sequential
        model = of([keras.layers.Input((64,)), *hidden, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        log_dir = folder / kind / f"{process}-{fit}"
        callbacks = [Delay(share), GpuUtilCallback(str(log_dir), report=False)]
        model.fit(x, x[:, :1], batch_size=32, epochs=1, verbose=0, callbacks=callbacks)


def recorded(folder: Path, wait_ms: int, processes: int, fits: int) -> dict[str, list]:
    """Return the recordings by kind, recording those that are missing."""
    from neighbour import neighbour

    from gpu_util_callback import read_recordings

    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(root), str(root / "harness" / "support")])
    for process in range(processes):
        if not (folder / "slower" / f"{process}-{fits - 1}").exists():
            begin = time.perf_counter()
            what = [sys.executable, __file__, str(folder), str(process), str(fits), str(wait_ms)]
            with neighbour(folder.name == "neighbour" and process % 2 == 1):
                subprocess.run(what, check=True, env={**os.environ, "PYTHONPATH": paths})
            load = os.getloadavg()[0]
            took = time.perf_counter() - begin
            print(f"  process {process}: {took:.0f} s, load average {load:.1f}", flush=True)
    return {kind: read_recordings(folder / kind) for kind in ("same", "slower")}


def process_of(recording) -> str:
    return recording.run.partition("-")[0]


def outcomes(runs: Sequence, baseline: Sequence, several: int = 1) -> Counter:
    """Count the outcomes of each run against each baseline of `several` runs of other processes."""
    from gpu_util_callback.diagnosis.regression import slowdowns

    found: Counter[str] = Counter()
    for run in runs:
        others = [one for one in baseline if process_of(one) != process_of(run)]
        # Of several, one of each process; as many as there are, without using any twice.
        others.sort(key=lambda one: (one.run.partition("-")[2], process_of(one)))
        for at in range(0, len(others) - several + 1, several):
            [verdict] = slowdowns([run], others[at : at + several], LIMIT)
            found[verdict["outcome"]] += 1
    return found


def repeated(runs: Sequence, baseline: Sequence, in_turns: bool = True, each: int = REPEATS) -> Counter:
    """Count the outcomes of comparisons of repeats with repeats that have no run in common.

    Args:
        each: how many on each side.
        in_turns: they were recorded in turns; else those of one side by other processes, earlier or
            later than those of the other side.
    """
    import numpy as np

    from gpu_util_callback.diagnosis.regression import slowdowns

    rng = np.random.default_rng(0)
    name = (lambda one: one.run) if in_turns else process_of
    names = sorted({name(one) for one in baseline})
    found: Counter[str] = Counter()
    for _ in range(200):
        half = set(rng.permutation(names)[: len(names) // 2])
        after = [one for one in runs if name(one) in half]
        before = [one for one in baseline if name(one) not in half]
        some, others = ([of[at] for at in rng.permutation(len(of))[:each]] for of in (after, before))
        [verdict] = slowdowns(some, others, LIMIT, repeats=True)
        found[verdict["outcome"]] += 1
    return found


def main() -> dict:
    import numpy as np

    figures: dict = {"steps": STEPS, "limit_pct": LIMIT, "slowdown_pct": 100 * SLOWDOWN}
    waiting: dict[str, Counter] = {}

    def show(what: str, found: Counter) -> None:
        pairs = sum(found.values())
        shares = {name: round(100 * found[name] / pairs, 2) for name in OUTCOMES}
        print(f"{what:34}{pairs:7,}" + "".join(f"{one:10.1f} %" for one in shares.values()))
        figures[what] = {"pairs": pairs, **shares}

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BENCH_GATE_KEEP") or temporary)
        for model, (wait_ms, processes, count) in MODELS.items():
            fits = recorded(folder / model, wait_ms, processes, count)
            for kind, of in fits.items():
                took = [float(np.median(one.steps["duration_ns"]) / 1e3) for one in of]
                low, middle, high = np.percentile(took, [5, 50, 95])
                print(f"  {model}, {kind}: {len(of)} fits, step {middle:.0f} µs ({low:.0f} to {high:.0f})")
                figures[f"{model}, {kind}: step_us"] = [round(low), round(middle), round(high)]
            print(f"{'':34}{'pairs':>7}" + "".join(f"{name:>12}" for name in OUTCOMES))
            comparisons = {
                "against 1": lambda runs, same: outcomes(runs, same, 1),
                f"against {SEVERAL}": lambda runs, same: outcomes(runs, same, SEVERAL),
                "3 each, in turns": lambda runs, same: repeated(runs, same, each=3),
                f"{REPEATS} each, in turns": repeated,
                f"{REPEATS} each, apart": lambda runs, same: repeated(runs, same, False),
            }
            for kind, (how, compare) in itertools.product(fits, comparisons.items()):
                found = compare(fits[kind], fits["same"])
                show(f"{model}, {kind}, {how}", found)
                if wait_ms:
                    waiting.setdefault(f"{kind}, {how}", Counter()).update(found)
        for what, found in waiting.items():
            show(f"all that wait, {what}", found)
    return figures


if __name__ == "__main__":
    if len(sys.argv) == 5:
        record(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        main()
