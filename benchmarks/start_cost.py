"""What a process pays once for us, beside Keras: our import, and its first recorded fit.

Each round is a process of its own, in turns: one whose third fit has our callback, one whose third
fit has none. What the first takes more is ours: CPU time, resident memory, modules loaded.
`BEFORE=DIR` measures the package of another checkout in the same turns; `BENCH_BACKEND`: another than jax.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rounds import spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
BACKEND = os.environ.get("BENCH_BACKEND", "jax")
HERE = Path(__file__).resolve().parents[1]
ENV = {"KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}  # compiled, as installed

CHILD = """
import gc, json, os, sys, tempfile, time
sys.path.insert(0, {checkout!r})
import keras, numpy, psutil
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = numpy.zeros((320, 8), "float32")
fit = lambda callbacks: model.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=callbacks)
mine, modules = psutil.Process(), set(sys.modules)
fit([]), fit([])
def now():
    gc.collect()
    return time.process_time(), mine.memory_info().rss / 1e6
with tempfile.TemporaryDirectory() as folder:
    begin = now()
    callbacks = []
    if {ours}:
        from gpu_util_callback import GpuUtilCallback
        callbacks = [GpuUtilCallback(folder)]
    imported = now()
    fit(callbacks)
    done = now()
ours = [module for name, module in list(sys.modules.items()) if name.startswith("gpu_util_callback")]
lines = sum(len(open(module.__file__).readlines()) for module in ours if getattr(module, "__file__", None))
print(json.dumps([imported[0] - begin[0], done[0] - imported[0], done[1] - begin[1],
                  len(set(sys.modules) - modules), len(ours), lines]))
"""
TITLES = ("import, CPU s", "fit, CPU s", "resident MB", "new modules", "modules of ours", "lines of ours")


def child(checkout: Path, ours: bool) -> list[float]:
    """Return what `TITLES` names, of one process: the import and the third fit, with our callback or without."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(checkout=str(checkout), ours=ours)],
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> dict:
    checkouts = {"this checkout": HERE}
    if "BEFORE" in os.environ:
        checkouts["before"] = Path(os.environ["BEFORE"]).resolve()
    for checkout in checkouts.values():
        child(checkout, ours=True)  # compiles our modules
    plain: list[list[float]] = []
    measured: dict[str, list[list[float]]] = {name: [] for name in checkouts}
    for _ in range(ROUNDS):
        plain.append(child(HERE, ours=False))
        for name, checkout in checkouts.items():
            measured[name].append(child(checkout, ours=True))
    base = [statistics.median(column) for column in zip(*plain, strict=True)]
    print(f"{ROUNDS} processes each, Keras on {BACKEND}; plain: {base[1]:.3f} s of CPU, {base[2]:.1f} MB")
    figures: dict = {"backend": BACKEND, "rounds": ROUNDS}
    for name, rounds in measured.items():
        added = {
            title: spread([value - base[at] for value in column])
            for at, (title, column) in enumerate(zip(TITLES, zip(*rounds, strict=True), strict=True))
        }
        figures[name] = added
        print(f"{name}: " + ", ".join(f"{title} {one['median']:+.3f}" for title, one in added.items()), flush=True)
    return figures


if __name__ == "__main__":
    main()
