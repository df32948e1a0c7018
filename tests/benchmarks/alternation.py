"""What a callback adds to a step: epochs with it and without it, in turn, inside one fit.

Whole fits differ by 10-20 % from one another; neighbouring epochs of ten steps do not. A driver
takes the callback out of every other epoch, and the difference of neighbours is what it costs.
Runs on any Keras backend.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.torch.backend import TimedBatches
from gpu_util_callback.steps.fit_frame import calling_fit

STRETCH = 10  # steps of an epoch
SKIP = 2  # the first steps of an epoch pay for the switch
BATCH = 64
BUDGET_US, BUDGET_PYTHON_US, BUDGET_RATIO = 40, 20, 1.01


@dataclass
class Cost:
    """Differences of neighbouring epochs, with minus without: µs per step, one per pair.

    Args:
        step_us: a step without the callback.
        whole: of the step's wall time; where the end hooks run on other threads and nobody waits
            for the device before the epoch's end, of the epoch's, by its steps.
        thread: of the training thread's processor time: what runs there is Python (and, on
            TensorFlow, what the thread does in the graph).
        function: of the train function, our wrapper included; empty where the end hooks run on
            other threads.
    """

    name: str
    step_us: float = 0.0
    whole: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    function: list[float] = field(default_factory=list)

    HEADER = (
        f"{'µs per step, with minus without':<36}{'outside the function':>26}"
        f"{'train function':>26}{'thread, processor':>26}{'whole step':>26}   ratio"
    )

    def row(self) -> str:
        outside = [a - b for a, b in zip(self.whole, self.function, strict=False)]
        parts = "".join(map(_quartiles, (outside, self.function, self.thread, self.whole)))
        return f"{self.name:<36}{parts}{self.ratio:8.4f}"

    @property
    def ratio(self) -> float:
        """Of a step with the callback to one without."""
        return 1 + statistics.median(self.whole) / self.step_us


def together(costs: list[Cost]) -> Cost:
    """The differences of several fits: what one compiled function's luck adds is less in them."""
    joined = Cost(costs[0].name, statistics.median(cost.step_us for cost in costs))
    for cost in costs:
        joined.whole += cost.whole
        joined.thread += cost.thread
        joined.function += cost.function
    return joined


def _quartiles(values: list[float]) -> str:
    if not values:
        return f"{'-':>26}"
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:10.1f} [{low:5.1f} …{high:6.1f}]"


class Begins(keras.callbacks.Callback):
    """Stamps each batch's begin hooks; the end hooks stay where Keras puts them."""

    def __init__(self, then: Callable[[int], None] | None = None):
        super().__init__()
        self.begin: list[int] = []
        self.thread: list[int] = []
        self.end: list[int] = []
        self.epoch_end: list[int] = []
        self.then = then

    def on_train_batch_begin(self, batch, logs=None):
        self.begin.append(time.perf_counter_ns())
        self.thread.append(time.thread_time_ns())

    def on_epoch_end(self, epoch, logs=None):
        self.epoch_end.append(time.perf_counter_ns())
        if self.then is not None:
            self.then(epoch + 1)


class Edge(Begins):
    """Stamps the end hooks too, which then run on the training thread on every backend."""

    def on_train_batch_end(self, batch, logs=None):
        self.end.append(time.perf_counter_ns())


class Switch:
    """Takes a callback out of a running fit and puts it back, between epochs."""

    def __init__(self, callback: keras.callbacks.Callback):
        self.callback = callback
        self.on = True
        self.list: Any = None
        self.epochs = 0

    def before(self, epoch: int) -> None:
        """The next epoch is `epoch`."""
        wanted = epoch % 2 == 1
        if wanted != self.on and epoch < self.epochs:  # the fit's end belongs to the callback
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

    _timed: TimedBatches | None = None  # torch: the loader's iterator under our hands

    def take_out(self) -> None:
        super().take_out()
        session = self.callback._session
        session._timer.detach()
        session._recorder.adapter._train.unwrap()
        epoch_iterator = calling_fit().f_locals["epoch_iterator"]
        if isinstance(epoch_iterator._current_iterator, TimedBatches):
            self._timed = epoch_iterator._current_iterator
            epoch_iterator._current_iterator = self._timed._iterator

    def put_back(self) -> None:
        super().put_back()
        session = self.callback._session
        session._timer.attach(self.list)
        if self._timed is not None:
            calling_fit().f_locals["epoch_iterator"]._current_iterator = self._timed
        # Not armed: the next epoch's first begin hook does that.
        session._recorder.adapter._train.wrap()


def dense_model(width: int, **compiled) -> keras.Model:
    """A model for inputs of this width, with two layers as wide."""
    model = keras.Sequential(
        [keras.layers.Dense(width, activation="relu") for _ in range(2)] + [keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", **compiled)
    return model


def model_of(step_ms: float, data: Callable[[int], Any], **compiled) -> tuple[keras.Model, int]:
    """A model whose steps take about so long here, and the width of its input.

    Args:
        data: the batches, without end, for a width.
    """
    width = 64
    while True:
        model = dense_model(width, **compiled)
        took = np.inf
        for _ in range(3):  # somebody else's work makes steps longer, never shorter
            edge = Edge()
            model.fit(data(width), steps_per_epoch=60, verbose=0, callbacks=[edge])
            took = min(took, np.percentile(np.diff(edge.begin)[20:], 25) / 1e6)
            if took < 0.8 * step_ms:
                break
        if took >= 0.8 * step_ms or width > 8000:
            return model, width
        width = int(width * 1.4)


def measure(
    name: str,
    callback: keras.callbacks.Callback,
    model: keras.Model,
    data: Any,
    *,
    pairs: int,
    synchronous: bool = True,
) -> Cost:
    """The cost of a callback per step.

    Args:
        model, data: what is trained on what, without end.
        pairs: epochs with and without.
        synchronous: beside a callback that has an end hook: on JAX and torch Keras then runs all
            end hooks on the training thread, and waits for the device. On TensorFlow it always
            does.
    """
    ours = isinstance(callback, GpuUtilCallback)
    switch = (OurSwitch if ours else Switch)(callback)
    kind = Edge if synchronous else Begins
    first, last = kind(), kind(switch.before)
    epochs = switch.epochs = 2 * (pairs + 2)
    callbacks = keras.callbacks.CallbackList(
        [first, callback, last], add_history=True, model=model, epochs=epochs, steps=STRETCH,
        verbose=0,
    )  # fmt: skip
    switch.list = callbacks
    model.fit(data, steps_per_epoch=STRETCH, epochs=epochs, verbose=0, callbacks=callbacks)

    def by_epoch(stamps: list[int]) -> np.ndarray:
        return np.array(stamps, np.int64).reshape(epochs, STRETCH) / 1e3

    cost = Cost(name)
    if synchronous:
        whole = np.diff(by_epoch(first.begin))[:, SKIP:]
    else:
        whole = (np.array(first.epoch_end)[:, None] / 1e3 - by_epoch(first.begin)[:, :1]) / STRETCH
    series = [(whole, cost.whole), (np.diff(by_epoch(first.thread))[:, SKIP:], cost.thread)]
    if synchronous:
        function = by_epoch(first.end) - by_epoch(last.begin)
        series.append((function[:, SKIP:-1], cost.function))
    cost.step_us = float(np.median(np.median(whole, 1)[4::2]))
    for values, differences in series:
        middle = np.median(values, 1)
        differences += (middle[5::2] - middle[4::2]).tolist()
    if ours:
        (recording,) = read_recordings(callback._settings.log_dir)
        assert recording.status == "ended"
        assert len(recording.steps["step"]) >= pairs * STRETCH
        assert (recording.steps["input_wait_ns"] >= 0).all()
    return cost
