"""Trains under one recorder after the other, in turns, and prints what each step took as JSON.

    step_program.py fit|loop back-to-back|paced ROUNDS

`fit` trains a Keras model on the backend that KERAS_BACKEND names, `loop` a PyTorch loop. The
model is tiny, so that what recording adds is no small part of what is measured; `paced` leaves the
processor idle between steps of 5 ms, as a training does whose device works.

Two fits of one program differ by more than our hooks cost. So a fit also takes them away and puts
them back in turns: what that changes is exact to some microseconds (`within`). What our own threads
take a step is read in a fit of its own, in parts as long as the pause between two diagnoses, after
the first ones, which come more often and import what they need (`own threads`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from instructions import counter
from threads import KNOWN, OURS, other_threads_us

BATCH, WIDTH, PACE_S = 8, 4, 0.005
# (steps before the stretch that is measured, steps of it)
WITHIN, THREADS = "within", "own threads"
LENGTHS = {"back-to-back": (200, 1500), "paced": (50, 250)}
# Seconds of training before our threads' time is read, and of each part in which it is.
SETTLED_S, PART_S, PARTS = 15.0, 10.0, 3
_instructions, WHY_NO_INSTRUCTIONS = counter()


CLOCKS: dict[str, Callable[[], float]] = {
    "thread_us": lambda: 1e6 * time.thread_time(),
    "process_us": lambda: 1e6 * time.process_time(),
    "wall_us": lambda: 1e6 * time.perf_counter(),
    **({"others_us": other_threads_us} if KNOWN else {}),
    **({"instructions": _instructions} if _instructions is not None else {}),
}


class Turns:
    """Takes a fit's wrappers away and puts them back, some steps each, and reads the clocks.

    What the other Python threads do goes on all the while; it is in neither turn, but of its own.
    """

    STEPS = 50

    def __init__(self, callback: Any, pace: str):
        self.callback, self.paced = callback, pace == "paced"
        self.first, steps = LENGTHS[pace]
        self.total = self.first + 2 * steps
        self.step = 0
        self.wrapped = True
        self.read: list[tuple[bool, dict[str, float]]] = []

    def begins(self) -> None:
        """A step begins, before all but the list's own hook."""
        if self.step >= self.first and not (self.step - self.first) % self.STEPS:
            now = {name: clock() for name, clock in CLOCKS.items()}
            self.read.append((self.wrapped, now))  # how it was until now
            self._switch(not self.wrapped)
        self.step += 1
        if self.paced:
            time.sleep(PACE_S)

    def _switch(self, wrap: bool) -> None:
        session = self.callback._session
        recorder, function = session.recorder, session.recorder.adapter._train
        if not self.read[1:]:
            self._hooks = [
                (owner, name, owner.__dict__[name], had, before)
                for owner, name, had, before in session._timer._undo
                if "train_batch" in name
            ]
            self._function = function.wrapper
        for owner, name, ours, had, before in self._hooks:
            if wrap or had:
                owner.__dict__[name] = ours if wrap else before
            else:
                owner.__dict__.pop(name, None)
        inner = self._function.__dict__["_gpu_util_wrapped"]
        function.model.train_function = self._function if wrap else inner
        function.armed = wrap
        if not wrap:
            recorder.timeline.leave_steps()
        self.wrapped = wrap

    def added(self) -> dict[str, float]:
        """Return what the wrappers add to a step: medians over neighbouring turns."""
        turns = [
            (wrapped, {name: (end[name] - begin[name]) / self.STEPS for name in CLOCKS})
            for (_, begin), (wrapped, end) in itertools.pairwise(self.read)
        ]
        pairs = [
            {name: (one[name] - other[name]) * (1 if wrapped else -1) for name in CLOCKS}
            for (wrapped, one), (_, other) in itertools.pairwise(turns[2:])
        ]
        return {name: statistics.median(pair[name] for pair in pairs) for name in CLOCKS}


class Stretch:
    """Reads the clocks as the stretch begins and ends, and paces the steps."""

    def __init__(self, pace: str):
        self.first, self.steps = LENGTHS[pace]
        self.paced = pace == "paced"
        self.step = 0
        self.read: list[dict[str, float]] = []

    def begins(self) -> None:
        """A step begins."""
        if self.step in (self.first, self.first + self.steps):
            self.read.append({name: clock() for name, clock in CLOCKS.items()})
        self.step += 1
        if self.paced:
            time.sleep(PACE_S)

    @property
    def total(self) -> int:
        return self.first + self.steps + 1

    def each(self) -> dict[str, float]:
        before, after = self.read
        return {name: (after[name] - before[name]) / self.steps for name in CLOCKS}


class Over(Exception):
    """Ends a fit. Keras on JAX fails where a callback on another thread sets `stop_training`."""


class Steady:
    """Reads the time of our threads over a long stretch, and raises `Over` at its end.

    Keras has threads of its own on JAX and PyTorch.
    """

    total = 10**9

    def __init__(self, pace: str):
        self.paced = pace == "paced"
        self.step = 0
        self.began = time.perf_counter()
        self.read: list[tuple[int, float]] = []

    def begins(self) -> None:
        """A step begins."""
        if not self.step % 64:
            spent_s = time.perf_counter() - self.began
            if spent_s > SETTLED_S + PART_S * len(self.read):
                self.read.append((self.step, other_threads_us(OURS)))
            if len(self.read) > PARTS:
                raise Over
        self.step += 1
        if self.paced:
            time.sleep(PACE_S)

    def each(self) -> list[dict[str, float]]:
        """Return what they took a step, in each part."""
        return [
            {"others_us": (after - before) / (end - begin)}
            for (begin, before), (end, after) in itertools.pairwise(self.read)
        ]


@contextlib.contextmanager
def nvitop_collects() -> Iterator[None]:
    """nvitop's collector at our rate, in a thread of its own as its documentation shows."""
    from nvitop import Device, ResourceMetricCollector

    collector = ResourceMetricCollector(Device.all(), root_pids={os.getpid()}, interval=0.1)
    daemon = collector.daemonize(on_collect=lambda metrics: going[0], interval=0.1)
    try:
        yield
    finally:
        going[0] = False
        daemon.join(5)
        going[0] = True


going = [True]


def fits(pace: str) -> dict[str, Callable[[], Any]]:
    """A fit under each of the recorders."""
    import keras

    from gpu_util_callback import GpuUtilCallback

    class Begins(keras.callbacks.Callback):
        async_safe = True

        def __init__(self, stretch: Stretch | Turns | Steady):
            super().__init__()
            self.stretch = stretch

        def on_train_batch_begin(self, batch, logs=None):
            self.stretch.begins()

    class BeginsAndEnds(Begins):
        """It has the hooks of the no-op callback, which is not needed beside it."""

        def on_train_batch_end(self, batch, logs=None):
            pass

    class NoOp(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_begin(self, batch, logs=None):
            pass

        def on_train_batch_end(self, batch, logs=None):
            pass

    batch = np.zeros((BATCH, WIDTH), np.float32), np.zeros((BATCH, 1), np.float32)
    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile="auto")

    def endless() -> Any:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            return tf.data.Dataset.from_tensors(batch).repeat()

        def generate():
            while True:
                yield batch

        return generate()

    def fit(*callbacks: keras.callbacks.Callback) -> dict[str, float]:
        stretch = Stretch(pace)
        model.fit(endless(), steps_per_epoch=stretch.total, verbose=0, callbacks=[Begins(stretch), *callbacks])
        return stretch.each()

    def under_nvitop() -> dict[str, float]:
        with nvitop_collects():
            return fit(NoOp())

    def within() -> dict[str, float]:
        ours = GpuUtilCallback(tempfile.mkdtemp(), report=False)
        turns = Turns(ours, pace)
        model.fit(endless(), steps_per_epoch=turns.total, verbose=0, callbacks=[BeginsAndEnds(turns), ours])
        taken, wanted = ours.summary()["steps"], turns.total // 3
        if not taken or taken < wanted:
            raise RuntimeError(f"{taken} steps were recorded, and not even {wanted}")
        return turns.added()

    def long_one() -> list[dict[str, float]]:
        steady = Steady(pace)
        ours = GpuUtilCallback(tempfile.mkdtemp(), report=False)
        with contextlib.suppress(Over):
            model.fit(endless(), steps_per_epoch=steady.total, verbose=0, callbacks=[BeginsAndEnds(steady), ours])
        return steady.each()

    found = {
        THREADS: long_one,
        WITHIN: within,
        "no callback": fit,
        "no-op callback": lambda: fit(NoOp()),
        "gpu-util-callback": lambda: fit(GpuUtilCallback(tempfile.mkdtemp(), report=False)),
    }
    if keras.backend.backend() == "tensorflow":
        found['TensorBoard(update_freq="batch")'] = lambda: fit(
            keras.callbacks.TensorBoard(tempfile.mkdtemp(), update_freq="batch", profile_batch=0, write_graph=False)
        )
    if importlib.util.find_spec("nvitop"):
        found["nvitop's collector"] = under_nvitop
    return found


def loops(pace: str) -> tuple[dict[str, Callable[[], Any]], Callable | None]:
    """A PyTorch loop under each of the recorders; and under TraceML, which stays once it is there.

    TraceML's aggregator is a process of its own; it is not part of what is measured.
    """
    import torch

    from gpu_util_callback import GpuUtilMonitor

    torch.set_num_threads(1)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = [(torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, 1))] * Stretch(pace).total

    def work(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()

    def plain() -> dict[str, float]:
        stretch = Stretch(pace)
        for x, y in batches:
            stretch.begins()
            work(x, y)
        return stretch.each()

    def ours() -> dict[str, float]:
        stretch = Stretch(pace)
        with GpuUtilMonitor(tempfile.mkdtemp(), report=False) as monitor:
            for x, y in monitor.batches(batches):
                stretch.begins()
                work(x, y)
        return stretch.each()

    def under_nvitop() -> dict[str, float]:
        with nvitop_collects():
            return plain()

    def traced() -> dict[str, float]:
        import traceml_ai as traceml

        traceml.init(mode="auto", on_missing_aggregator="raise")
        stretch = Stretch(pace)
        for x, y in batches:
            stretch.begins()
            with traceml.trace_step(model):
                work(x, y)
        return stretch.each()

    def long_one() -> list[dict[str, float]]:
        steady = Steady(pace)
        monitored = GpuUtilMonitor(tempfile.mkdtemp(), report=False)
        with contextlib.suppress(Over), monitored as monitor:
            for x, y in monitor.batches(itertools.repeat(batches[0])):
                steady.begins()
                work(x, y)
        return steady.each()

    found = {THREADS: long_one, "no callback": plain, "gpu-util-callback": ours}
    if importlib.util.find_spec("nvitop"):
        found["nvitop's collector"] = under_nvitop
    return found, traced if importlib.util.find_spec("traceml_ai") else None


@contextlib.contextmanager
def traceml_serves() -> Iterator[None]:
    folder = tempfile.mkdtemp()
    code = "import sys; from traceml_ai.launcher.cli import main; sys.argv = ['traceml', 'serve']"
    server = subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.exit(main())"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 29765), 1):
                break
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def main(what: str, pace: str, rounds: int) -> None:
    traced = None
    if what == "loop":
        found, traced = loops(pace)
    else:
        found = fits(pace)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    long_one = found.pop(THREADS)
    if "others_us" in CLOCKS:
        taken[THREADS] = long_one()
    order = random.Random(0)
    for number in range(rounds + 1):  # the first one traces and warms up
        for name in order.sample(list(found), len(found)):
            each = found[name]()
            if number:
                taken[name].append(each)
    if traced is not None:
        with traceml_serves():
            taken["TraceML's trace_step"] = [traced() for _ in range(rounds + 1)][1:]
    print("JSON", json.dumps({"taken": taken, "no_instructions": WHY_NO_INSTRUCTIONS}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
