"""Measures one Keras backend, named by KERAS_BACKEND, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import keras
import numpy as np
from alternation import BATCH, STRETCH, Edge, measure, model_of
from bare_fit import python_us
from device_reads import counted_reads

from gpu_util_callback import GpuUtilCallback, read_recordings


def batches(width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same batch for ever, as a Python generator."""
    batch = np.zeros((BATCH, width), np.float32), np.zeros((BATCH, 1), np.float32)
    while True:
        yield batch


def main(pairs: int) -> None:
    logs = tempfile.mkdtemp()
    for step_ms in (1, 5):
        for name, ours, synchronous in (
            ("GpuUtilCallback alone", True, False),
            ("  beside a synchronous callback", True, True),
            ("callback that does nothing", False, False),
        ):
            log_dir = f"{logs}/{step_ms}{synchronous}"
            callback = GpuUtilCallback(log_dir, report=False) if ours else Nothing()
            model, width = model_of(step_ms, batches)
            cost = measure(
                name, callback, model, batches(width), pairs=pairs, synchronous=synchronous
            )
            if name == "GpuUtilCallback alone":
                print(
                    f"{keras.backend.backend()}, steps of {cost.step_us / 1e3:.1f} ms, "
                    f"{pairs} pairs of {STRETCH} steps"
                )
            print(cost.row(), flush=True)
    for name, beside in (("alone", Nothing), ("beside a synchronous callback", Edge)):
        own = python_us(lambda: GpuUtilCallback(tempfile.mkdtemp(), report=False), batches, beside)
        print(f"Python on the training thread, a fit without work, {name}: {own:.1f} µs a step")
    overhead = next(iter(read_recordings(f"{logs}/5False"))).facts["overhead"]
    print(
        f"said of itself: {overhead['callback_us_per_step']} µs Python a step, recorder's thread "
        f"{overhead['recorder_cpu_pct']} % of a core"
    )
    without, recorded = reads(ours=False), reads(ours=True)
    same = "the same" if without == recorded else f"NOT the same: {recorded}"
    print(f"reads of the device in 80 steps without us: {without or 'none'}; with us: {same}")


class Nothing(keras.callbacks.Callback):
    """Does nothing, wherever Keras calls it."""

    async_safe = True


def reads(ours: bool) -> dict[str, int]:
    """How often two epochs of 40 steps read from the device, once compiled."""
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((320, 16), np.float32), np.ones((320, 1), np.float32)
    model.fit(x, y, batch_size=8, verbose=0)
    callbacks = [GpuUtilCallback(tempfile.mkdtemp(), report=False)] if ours else []
    with counted_reads() as counts:
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
        return dict(counts)


if __name__ == "__main__":
    main(int(sys.argv[1]))
