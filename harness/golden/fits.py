"""Real fits on the backend that KERAS_BACKEND names, each recorded in a log directory of its own.

Each is kept twice: as recorded, and without its diagnosis, which a reader then makes anew.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import keras
import numpy as np

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor

WIDTH, BATCH = 32, 16


def model(**options) -> keras.Model:
    made = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    made.compile("adam", "mse", **options)
    return made


def arrays(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((steps * BATCH, WIDTH), np.float32), np.ones((steps * BATCH, 1), np.float32)


class Slow(keras.utils.PyDataset):
    """Batches that take a while, for some of the time."""

    def __len__(self):
        return 90

    def __getitem__(self, index):
        time.sleep(0.015 if 30 <= index < 60 else 0.0)
        return tuple(part[:BATCH] for part in arrays(1))


class Pause(keras.callbacks.Callback):
    """A callback that holds training up."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.004)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.3)


def generator():
    for _ in range(200):
        time.sleep(0.006)
        yield tuple(part[:BATCH] for part in arrays(1))


def loop(log_dir: str) -> None:
    """Somebody's own loop."""
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for _ in monitor.batches(generator()):
            time.sleep(0.002)


FITS = {
    "arrays": lambda d: model().fit(*arrays(200), batch_size=BATCH, epochs=2, **said(d)),
    "slow-third": lambda d: model().fit(Slow(), epochs=2, **said(d)),
    "generator": lambda d: model().fit(generator(), steps_per_epoch=100, **said(d)),
    "callbacks": lambda d: model().fit(*arrays(100), batch_size=BATCH, epochs=3, **said(d, Pause())),
    "validation": lambda d: model().fit(
        *arrays(60), batch_size=BATCH, epochs=3, validation_data=arrays(200), **said(d)
    ),
    "several-steps": lambda d: model(steps_per_execution=4).fit(*arrays(202), batch_size=BATCH, **said(d)),
    "eager": lambda d: model(run_eagerly=True).fit(*arrays(40), batch_size=BATCH, **said(d)),
    "loop": loop,
}


def said(log_dir: str, *more) -> dict:
    return {"verbose": 0, "callbacks": [GpuUtilCallback(log_dir, report=False), *more]}


def main(corpus: Path, backend: str) -> None:
    """Train, and write below `corpus`."""
    for name, fit in FITS.items():
        if name == "several-steps" and backend == "torch":
            continue  # Keras has no such executions there
        log_dir = corpus / f"{backend}-{name}"
        fit(str(log_dir))
        bare = shutil.copytree(log_dir, corpus / f"{backend}-{name}-undiagnosed")
        for file in bare.rglob("manifest.json"):
            manifest = json.loads(file.read_text())
            manifest.pop("diagnosis", None)
            file.write_text(json.dumps(manifest))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
