"""What recording adds to a training step: plain and recorded stretches inside one fit.

Whole fits differ by 10-20 % from one another; neighbouring stretches of ten steps do not. In each
fit a driver switches one callback on and off every ten steps, and the difference of neighbours
is what the callback costs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recording import Clock, RecordingWriter

STRETCH = 10
SKIP = 2  # the first steps of a stretch pay for the switch
BATCH = 64
BUDGET_US, BUDGET_PYTHON_US, BUDGET_RATIO, BUDGET_BYTES = 40, 20, 1.01, 32


@dataclass
class Cost:
    """Differences of neighbouring stretches, on minus off: µs per step, one value per pair."""

    name: str
    step_us: float
    whole: list[float] = field(default_factory=list)
    hooks: list[float] = field(default_factory=list)
    function: list[float] = field(default_factory=list)

    def row(self) -> str:
        def part(values: list[float]) -> str:
            low, middle, high = np.percentile(values, [25, 50, 75])
            return f"{middle:8.1f} [{low:6.1f} …{high:6.1f}]"

        ratio = 1 + statistics.median(self.whole) / self.step_us
        return (
            f"{self.name:<34}{part(self.hooks)} {part(self.function)} {part(self.whole)}"
            f"{ratio:8.4f}"
        )


class Edge(keras.callbacks.Callback):
    """First and last in the list: stamps where hooks end and the train function begins."""

    def __init__(self, then: Callable[[int], None] | None = None):
        super().__init__()
        self.begin: list[int] = []
        self.end: list[int] = []
        self.then = then

    def on_train_batch_begin(self, batch, logs=None):
        self.begin.append(time.perf_counter_ns())

    def on_train_batch_end(self, batch, logs=None):
        self.end.append(time.perf_counter_ns())
        if self.then is not None:
            self.then(batch + 1)


class Switch:
    """Takes a callback out of a running fit and puts it back."""

    def __init__(self, callback: keras.callbacks.Callback):
        self.callback = callback
        self.on = True
        self.list: keras.callbacks.CallbackList | None = None

    def at(self, batch: int) -> None:
        """The next batch is `batch`; called last thing in the one before."""
        wanted = batch // STRETCH % 2 == 1
        if batch % STRETCH == 0 and wanted != self.on:
            self.on = wanted
            (self.put_back if wanted else self.take_out)()

    def take_out(self) -> None:
        # Keras is going through the old list right now; the new one holds from the next hook on.
        self.list.callbacks = [c for c in self.list.callbacks if c is not self.callback]

    def put_back(self) -> None:
        others = list(self.list.callbacks)
        self.list.callbacks = [others[0], self.callback, *others[1:]]


class OurSwitch(Switch):
    """The same for ours: its wrappers go and come too."""

    def take_out(self) -> None:
        super().take_out()
        session = self.callback._session
        session._timer.detach()
        session._recorder.adapter._train.unwrap()

    def put_back(self) -> None:
        super().put_back()
        session = self.callback._session
        session._timer.attach(self.list)


def model_of(step_ms: float) -> tuple[keras.Model, int]:
    """A model whose steps take about so long here, and the width of its input."""
    width = 64
    while True:
        model = keras.Sequential(
            [keras.layers.Dense(width, activation="relu") for _ in range(2)]
            + [keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse", jit_compile=False)
        edge = Edge()
        model.fit(dataset_of(width), steps_per_epoch=60, verbose=0, callbacks=[edge])
        took = np.median(np.diff(edge.begin)[20:]) / 1e6
        if took >= 0.8 * step_ms or width > 8000:
            return model, width
        width = int(width * 1.4)


def dataset_of(width: int, dynamic: bool = False) -> tf.data.Dataset:
    """The same batch for ever; `dynamic`: of unknown size, as without `drop_remainder`."""
    dataset = tf.data.Dataset.from_tensors((tf.zeros((BATCH, width)), tf.zeros((BATCH, 1))))
    if dynamic:
        shapes = ((None, width), (None, 1))
        dataset = dataset.map(
            lambda *batch: tuple(
                tf.ensure_shape(tf.py_function(lambda t: t, [tensor], tensor.dtype), shape)
                for tensor, shape in zip(batch, shapes, strict=True)
            )
        ).cache()
    return dataset.repeat()


def measure(
    name: str, callback: keras.callbacks.Callback, step_ms: float, pairs: int,
    dynamic: bool = False,
) -> Cost:  # fmt: skip
    """The cost of a callback per step.

    Args:
        step_ms: about how long a plain step takes.
        pairs: stretches on and off.
        dynamic: the size of a batch is unknown to the graph.
    """
    model, width = model_of(step_ms)
    steps = 2 * STRETCH * (pairs + 2) - 1  # ends switched on, for `on_train_end`
    switch = (OurSwitch if isinstance(callback, GpuUtilCallback) else Switch)(callback)
    first, last = Edge(), Edge(switch.at)
    callbacks = keras.callbacks.CallbackList(
        [first, callback, last], add_history=True, model=model, epochs=1, steps=steps, verbose=0
    )
    switch.list = callbacks
    model.fit(
        dataset_of(width, dynamic), steps_per_epoch=steps, epochs=1, verbose=0, callbacks=callbacks
    )
    begin, called = np.array(first.begin), np.array(last.begin)
    returned, end = np.array(first.end), np.array(last.end)
    whole = np.diff(begin) / 1e3
    function = ((returned - called) / 1e3)[:-1]
    hooks = whole - function
    cost = Cost(name, 0.0)
    plain = []
    for pair in range(2, pairs + 2):
        off = slice(2 * pair * STRETCH + SKIP, (2 * pair + 1) * STRETCH - 1)
        on = slice((2 * pair + 1) * STRETCH + SKIP, (2 * pair + 2) * STRETCH - 1)
        plain.append(np.median(whole[off]))
        for values, differences in (
            (whole, cost.whole), (hooks, cost.hooks), (function, cost.function),
        ):  # fmt: skip
            differences.append(float(np.median(values[on]) - np.median(values[off])))
    cost.step_us = float(np.median(plain))
    assert len(end) == len(begin)
    if isinstance(callback, GpuUtilCallback):
        recording = next(iter(read_recordings(callback._settings.log_dir)))
        assert recording.status == "ended" and len(recording.steps["step"]) >= pairs * STRETCH
        assert (recording.steps["input_wait_ns"] >= 0).all()
    return cost


def bytes_per_step(log_dir: str) -> float:
    """What the `steps` table takes on disk, from the rows of a real fit, a flush every 2 s."""
    rows = next(iter(read_recordings(log_dir))).steps
    count = len(rows["step"])
    folder = tempfile.mkdtemp()
    writer = RecordingWriter(folder, {}, clock=Clock(), flush_s=2)
    times = 20
    for i in range(times):
        more = {name: column.copy() for name, column in rows.items()}
        more["step"] += i * count
        more["start_ns"] += i * int(rows["start_ns"][-1] - rows["start_ns"][0] + 10**6)
        writer.append("steps", more)
        writer.flush()
    writer.close("ended")
    segments = Path(writer.path).glob("segment-*")
    return sum(path.stat().st_size for path in segments) / (times * count)


def main(pairs: int = 150) -> None:
    print(f"{'µs per step, on minus off':<34}{'hooks (Python)':>26} {'train function':>25}"
          f" {'whole step':>25}   ratio")  # fmt: skip
    logs = tempfile.mkdtemp()
    for step_ms in (1, 5):
        kinds = (
            ("GpuUtilCallback", GpuUtilCallback(f"{logs}/{step_ms}", report=False), False),
            ("  with dynamic shapes", GpuUtilCallback(f"{logs}/d{step_ms}", report=False), True),
            ("callback that does nothing", keras.callbacks.Callback(), False),
            ('TensorBoard(update_freq="batch")', keras.callbacks.TensorBoard(
                f"{logs}/tb{step_ms}", update_freq="batch", profile_batch=0,
                write_graph=False), False),
        )  # fmt: skip
        for name, callback, dynamic in kinds:
            cost = measure(name, callback, step_ms, pairs, dynamic)
            if name == "GpuUtilCallback":
                print(f"steps of {cost.step_us / 1e3:.1f} ms, {pairs} pairs of {STRETCH} steps")
            print(cost.row(), flush=True)
    print(f"budget: whole ≤ {BUDGET_US} µs, of it Python ≤ {BUDGET_PYTHON_US} µs, "
          f"ratio ≤ {BUDGET_RATIO} at 5 ms")  # fmt: skip
    recording = next(iter(read_recordings(f"{logs}/5")))
    overhead = recording.facts["overhead"]
    print(f"said of itself: {overhead['callback_us_per_step']} µs Python a step, recorder's thread "
          f"{overhead['recorder_cpu_pct']} % of a core")  # fmt: skip
    print(f"steps table on disk: {bytes_per_step(f'{logs}/1'):.1f} bytes a step "
          f"(budget {BUDGET_BYTES})")  # fmt: skip


if __name__ == "__main__":
    main()
