"""One small program a remedy: trained as it is and with the printed cure, in turns, in one process.

`python -m gauntlet.cures [NAMES] --json gauntlet/cures.json` records each as it is, looks for the remedy among
what is printed about it, and then times both sides without a recording. What takes time waits, so that a
busy machine changes little: it shows what a cure gains where its conditions hold, and no more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gauntlet.child import NoMonitor
from gauntlet.helpers import jax, keras, np, tf, torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "harness" / "support"))
ROUNDS = 3
CURES: dict[str, Cure] = {}


@dataclass(frozen=True)
class Cure:
    """A program and the remedy it is for: words of its text, and of its code."""

    train: Callable[[Side], None]
    says: str
    code: str
    backend: str


@dataclass
class Side:
    """One training of a program: as it is or cured, recorded or not."""

    cured: bool = False
    log_dir: str | None = None
    seconds: float = 0.0

    def fit(self, model: Any, data: Any, *args: Any, callbacks: Iterable = (), **options: Any) -> None:
        """Train a model that is compiled; only the call of `fit` is timed."""
        with self.timed():
            model.fit(data, *args, callbacks=[*callbacks, *self.own_callbacks()], **{"verbose": 0, **options})

    def own_callbacks(self) -> list:
        if self.log_dir is None:
            return []
        from gpu_util_callback import GpuUtilCallback

        return [GpuUtilCallback(self.log_dir, trace="off", report=False)]

    def own_monitor(self) -> Any:
        """The monitor of a loop, or something of its interface, to be entered by the loop's own function."""
        if self.log_dir is None:
            return NoMonitor()
        from gpu_util_callback import GpuUtilMonitor

        return GpuUtilMonitor(self.log_dir, trace="off", report=False)

    @contextlib.contextmanager
    def monitor(self) -> Iterator[Any]:
        """The same, entered and timed."""
        monitor = self.own_monitor()
        with self.timed(), monitor as entered:
            yield entered or monitor

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


def cures(says: str, code: str = "", backend: str = "tensorflow") -> Callable:
    """Register a program: `says` and `code` are searched in the advice that is printed about it as it is."""

    def register(train: Callable[[Side], None]) -> Callable[[Side], None]:
        CURES[train.__name__] = Cure(train, says, code, backend)
        return train

    return register


def wait(ms: float) -> None:
    """Wait, as for a device or a disk."""
    time.sleep(ms / 1e3)


def compute(ms: float) -> None:
    """Compute for so long, in Python."""
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


def timed_model(ms: float = 5.0) -> Any:
    """A compiled model whose step waits so long, inside its graph."""
    from timed_fit import Timed

    model = Timed(ms)
    model.compile("sgd", "mse", jit_compile=False)
    return model


def quick(count: int) -> Any:
    """So many batches that are there at once."""
    from timed_fit import labelled

    return labelled(count)


def slow_map(ms: float) -> Any:
    """A function for `map` that waits so long for an element, as for a file, in Python."""
    from timed_fit import slowly

    return slowly(ms)


def elements(count: int) -> Any:
    """So many batches without labels."""
    from timed_fit import batches

    return batches(count)


# -- callbacks -------------------------------------------------------------------------------------


def _hooked(hook: str, ms: float, every: int) -> Any:
    """A callback of the program's own whose hook waits at every so many batches or epochs."""

    class Watcher(keras.callbacks.Callback):
        pass

    def work(self, number, logs=None):
        if number % every == 0:
            wait(ms)

    setattr(Watcher, hook, work)
    return Watcher()


@cures("sets how often it works", r"Printer\(\.\.\., print_every=100\)")
def callback_argument(side: Side) -> None:
    class Printer(keras.callbacks.Callback):
        def __init__(self, print_every: int):
            super().__init__()
            self.print_every = print_every

        def on_train_batch_end(self, batch, logs=None):
            if batch % self.print_every == 0:
                wait(12)

    side.fit(timed_model(), quick(150), callbacks=[Printer(100 if side.cured else 1)])


@cures("do it once an epoch", r"def on_epoch_end")
def callback_once_an_epoch(side: Side) -> None:
    every = 100 if side.cured else 20
    side.fit(timed_model(2), quick(100), epochs=5, callbacks=[_hooked("on_train_batch_end", 250, every)])


@cures("Save every", r"save_freq=\d+ \* 12")
def saves_less_often(side: Side) -> None:
    every = 10 if side.cured else 1
    path = str(Path(tempfile.mkdtemp()) / "model.keras")
    saver = keras.callbacks.ModelCheckpoint(path, save_freq=every * 12)
    side.fit(timed_model(), quick(12), epochs=60, callbacks=[saver])


@cures("Print one line an epoch", r"verbose=2")
def progress_bar(side: Side) -> None:
    from keras.src.utils import progbar

    update = progbar.Progbar.update

    def slowly(self, *args, **kwargs):  # as to a notebook far away
        wait(4)
        update(self, *args, **kwargs)

    progbar.Progbar.update = slowly
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            side.fit(timed_model(3), quick(200), verbose=2 if side.cured else 1)
    finally:
        progbar.Progbar.update = update


@cures("do it less often, or in a background thread", r"if number % \d+ == 0: \.\.\.")
def callback_epochs(side: Side) -> None:
    side.fit(timed_model(), quick(12), epochs=60, callbacks=[_hooked("on_epoch_end", 60, 10 if side.cured else 1)])


# -- loops -----------------------------------------------------------------------------------------


def _loop(side: Side, phase: str, epochs: int, steps: int, ms: float, does: Callable[[int, int], bool]) -> None:
    """A loop of steps of 4 ms; where `does` the work of a phase takes `ms`, at a step or (-1) after an epoch."""
    with side.monitor() as monitor:
        for epoch in range(epochs):
            for step, _ in enumerate(monitor.batches(range(steps))):
                wait(4)
                if does(epoch, step):
                    with monitor.phase(phase):
                        wait(ms)
            if does(epoch, -1):
                with monitor.phase(phase):
                    wait(ms)


@cures("once, at the end of this short training", r"if epoch == \d+")
def loop_phase_once(side: Side) -> None:
    _loop(side, "plots", 6, 60, 200, lambda epoch, step: step < 0 and (epoch == 5 or not side.cured))


@cures("do it less often, or in a background thread", r"if epoch % \d+ == 0")
def loop_phase_less_often(side: Side) -> None:
    _loop(side, "plots", 60, 12, 30, lambda epoch, step: step < 0 and epoch % (10 if side.cured else 1) == 0)


@cures(r"do it every \w+ step", r"if step % 100 == 0")
def loop_phase_in_steps(side: Side) -> None:
    _loop(side, "logging", 1, 300, 6, lambda epoch, step: step >= 0 and step % (100 if side.cured else 1) == 0)


@cures("Save .* times less often", r"if epoch % \d+ == 0")
def loop_checkpoints(side: Side) -> None:
    _loop(side, "checkpoint", 40, 20, 60, lambda epoch, step: step < 0 and epoch % (10 if side.cured else 1) == 0)


@cures(r"Save every \w+ step", r"if step % 100 == 0")
def loop_checkpoints_in_steps(side: Side) -> None:
    _loop(side, "checkpoint", 1, 300, 6, lambda epoch, step: step >= 0 and step % (100 if side.cured else 1) == 0)


@cures("Validate every", r"if epoch % \d+ == 0")
def loop_validation(side: Side) -> None:
    _loop(side, "validation", 16, 30, 150, lambda epoch, step: step < 0 and epoch % (4 if side.cured else 1) == 0)


@cures("Is every second epoch enough", r"if epoch % 2 == 0")
def loop_function(side: Side) -> None:
    def inspect_weights():
        wait(200)

    with side.monitor() as monitor:
        for epoch in range(16):
            for _ in monitor.batches(range(40)):
                wait(4)
            if epoch % (2 if side.cured else 1) == 0:
                inspect_weights()


@cures("Is half as often enough", r"if step % \d+ == 0")
def loop_long_steps(side: Side) -> None:
    def inspect_weights():
        wait(200)

    monitor = side.own_monitor()
    with side.timed(), monitor:
        for number in monitor.batches(range(1, 481)):
            wait(4)
            if number % (40 if side.cured else 20) == 0:
                inspect_weights()


class Ahead:
    """Batches of an iterable, each made by a thread while the one before is used."""

    def __init__(self, batches: Iterable) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator:
        with ThreadPoolExecutor(1) as pool:
            batches = iter(self.batches)
            coming = pool.submit(next, batches, None)
            while (batch := coming.result()) is not None:
                coming = pool.submit(next, batches, None)
                yield batch


def _slow_batches(count: int, ms: float) -> Iterator[int]:
    for number in range(1, count + 1):
        wait(ms)
        yield number


@cures("Let a thread make the next one", "class Ahead")
def loop_thread(side: Side) -> None:
    batches: Iterable = _slow_batches(200, 8)
    with side.monitor() as monitor:
        for _ in monitor.batches(Ahead(batches) if side.cured else batches):
            wait(10)


@cures("let several be made at a time", "class Pooled")
def loop_pool(side: Side) -> None:
    def pooled() -> Iterator[None]:
        with ThreadPoolExecutor(5) as pool:
            coming: deque = deque()
            for _ in range(100):
                coming.append(pool.submit(wait, 30))
                if len(coming) > 10:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    with side.monitor() as monitor:
        for _ in monitor.batches(pooled() if side.cured else _slow_batches(100, 30)):
            wait(8)


# -- several fits ----------------------------------------------------------------------------------


@cures("Is one after every second fit enough", r"if number % 2 == 0")
def evaluates_less(side: Side) -> None:
    model, checks = timed_model(4), elements(20).map(slow_map(15))
    for number in range(10):
        side.fit(model, quick(20), epochs=2)
        if number % (2 if side.cured else 1) == 0:
            with side.timed():
                model.evaluate(checks, verbose=0)


@cures("let a thread do it while this one trains", r"coming = pool\.submit")
def next_data(side: Side) -> None:
    def read_part(number: int) -> Any:
        wait(400)
        return quick(40 + number % 2)

    model, pool = timed_model(8), ThreadPoolExecutor(1)
    coming = pool.submit(read_part, 0)
    for number in range(8):
        with side.timed():
            if side.cured:
                data, coming = coming.result(), pool.submit(read_part, number + 1)
            else:
                data = read_part(number)
        side.fit(model, data)


@cures("Can one call train on more batches", r"model\.train_on_batch")
def fits_of_parts(side: Side) -> None:
    class Part(keras.utils.PyDataset):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, i: int) -> Any:
            wait(0 if i else 80)
            return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")

    model, own = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]), side.own_callbacks()
    model.compile("sgd", "mse")
    with side.timed():
        if side.cured:
            part = Part(200)
            for i in range(len(part)):
                model.train_on_batch(*part[i])
        else:
            for _ in range(40):
                model.fit(Part(5), callbacks=own, verbose=0)


# -- validation ------------------------------------------------------------------------------------


def _validated(side: Side, data: Any, validation: Any, epochs: int = 6, ms: float = 0, **options: Any) -> None:
    """Train a model that takes `ms` for each batch of a validation."""
    from timed_fit import Timed, pause

    class Checked(Timed):
        def test_step(self, data):
            x, y = data
            return super().test_step((pause(x, ms) if ms else x, y))

    model = Checked(4)
    model.compile("sgd", "mse", jit_compile=False)
    side.fit(model, data, epochs=epochs, validation_data=validation, **options)


@cures("Read it once", r"validation_steps=12\b")
def validation_one_pass(side: Side) -> None:
    rows = np.ones((48, 8), "float32"), np.ones((48, 1), "float32")
    validation = tf.data.Dataset.from_tensor_slices(rows).batch(4).repeat()
    _validated(side, quick(30), validation, ms=4, validation_steps=12 if side.cured else 96)


def _slow_row(ms: float) -> Any:
    """A function for `map` that reads an element slowly, in Python."""

    def read(value):
        wait(ms)
        return value

    def load(number):
        x = tf.ensure_shape(tf.numpy_function(read, [tf.fill([8], 1.0)], tf.float32), (8,))
        return x, x[:1]

    return load


@cures("Skip them before they are made", r"\.skip\(")
def validation_skip(side: Side) -> None:
    rows, load = tf.data.Dataset.range(120), _slow_row(10)
    slow = rows.skip(80).map(load).batch(4) if side.cured else rows.map(load).batch(4).skip(20)
    _validated(side, quick(40), slow, epochs=3)


class _Rows:
    """Makes a class of PyDatasets late, as Keras is imported late."""

    @staticmethod
    def of(count: int, ms: float, **options: Any) -> Any:
        class Rows(keras.utils.PyDataset):
            def __len__(self) -> int:
                return count

            def __getitem__(self, i: int) -> Any:
                wait(ms)
                return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")

        return Rows(**options)


@cures("Let several threads prepare it", r"workers = \d+")
def validation_threads(side: Side) -> None:
    workers = 4 if side.cured else 1
    _validated(side, quick(30), _Rows.of(30, 15, workers=workers))


@cures("Batch it as large", r"batch\(4\)")
def validation_rows(side: Side) -> None:
    rows = quick(200).unbatch()
    _validated(side, quick(30), rows.take(120).batch(4 if side.cured else 1), ms=8)


@cures("Validate on .* of its", r"validation_steps=\d+")
def validation_fewer(side: Side) -> None:
    options = {"validation_steps": 8} if side.cured else {}
    _validated(side, quick(60), quick(150), epochs=2, ms=6, **options)


@cures("Make them once, before training", r"= list\(")
def validation_kept(side: Side) -> None:
    class Checks:
        def __iter__(self) -> Iterator[int]:
            return _slow_batches(20, 10)

    validation: Any = Checks()
    if side.cured:
        with side.timed():
            validation = list(validation)
    with side.monitor() as monitor:
        for _ in range(6):
            for _ in monitor.batches(range(30)):
                wait(4)
            with monitor.phase("validation"):
                for _ in monitor.batches(validation):
                    wait(1)


# -- tf.data ---------------------------------------------------------------------------------------


@cures("Let it make the next one during the step", r"prefetch\(tf\.data\.AUTOTUNE\)")
def prefetch(side: Side) -> None:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data = elements(120).map(slow_map(12)).with_options(options)
    side.fit(timed_model(18), data.prefetch(-1) if side.cured else data)


@cures("Let it drop them before they are made", r"shard\(4")
def shard_first(side: Side) -> None:
    data = elements(160)
    slow = slow_map(8)
    data = data.shard(4, 0).map(slow) if side.cured else data.map(slow).shard(4, 0)
    side.fit(timed_model(4), data, epochs=2)


@cures("Take before the cache", r"take\(30\)\.cache\(\)")
def take_before_cache(side: Side) -> None:
    slow = elements(60).map(slow_map(15))
    data = slow.take(30).cache() if side.cured else slow.cache().take(30)
    side.fit(timed_model(4), data, epochs=6)


def _computing(ms: float) -> Any:
    """A function for `map` that computes about so long, in Python."""

    def work(value):
        compute(ms)
        return value

    def load(x):
        x = tf.ensure_shape(tf.numpy_function(work, [x], tf.float32), (4, 8))
        return x, x[:, :1]

    return load


@cures("do it before the cache", r"\.cache\(\)")
def map_before_cache(side: Side) -> None:
    data = elements(30)
    data = data.map(_computing(15)).cache() if side.cured else data.cache().map(_computing(15))
    side.fit(timed_model(4), data, epochs=6)


@cures("Skip them before they are made", r"skip\(\d+\)")
def skip_first(side: Side) -> None:
    rows, load = tf.data.Dataset.range(140), _slow_row(10)
    data = rows.skip(80).map(load).batch(4) if side.cured else rows.map(load).batch(4).skip(20)
    side.fit(timed_model(4), data, epochs=4)


@cures("If so, skip them before they are made", r"skip\(\d+\)")
def skip_others(side: Side) -> None:
    rows, load = tf.data.Dataset.range(140), _slow_row(10)
    if side.cured:
        data = rows.skip(80).map(load).shuffle(8).batch(4)
    else:
        data = rows.map(load).shuffle(8).batch(4).skip(20)
    side.fit(timed_model(4), data, epochs=4)


def _large_batches(data: Any) -> Any:
    return data.map(lambda x: (x, x[:, :1]))


@cures("Batch each of them", r"one\.batch\(size\)")
def sampled_batches(side: Side) -> None:
    parts = [tf.data.Dataset.from_tensor_slices(np.full((40_000, 8), i, "float32")) for i in (0, 1)]
    if side.cured:
        data = tf.data.Dataset.zip(tuple(part.batch(2000) for part in parts)).map(
            lambda *rows: tf.concat(rows, 0), num_parallel_calls=1
        )
    else:
        data = tf.data.Dataset.sample_from_datasets(parts, [0.5, 0.5], seed=1).batch(4000)
    side.fit(timed_model(4), _large_batches(data), epochs=4)


@cures("Batch first", r"\.batch\(.*\)\.map")
def map_whole_batches(side: Side) -> None:
    def scaled(x):
        return x / 2.0 - 1.0

    rows = tf.data.Dataset.from_tensor_slices(np.ones((40_000, 8), "float32"))
    calls = {"num_parallel_calls": tf.data.AUTOTUNE}
    data = rows.batch(2000).map(scaled, **calls) if side.cured else rows.map(scaled).batch(2000)
    side.fit(timed_model(4), _large_batches(data), epochs=4)


# -- PyDataset -------------------------------------------------------------------------------------


@cures("use more", r"workers = \d+")
def pydataset_more(side: Side) -> None:
    side.fit(timed_model(5), _Rows.of(120, 40, workers=12 if side.cured else 2))


@cures("make each sample once", r"made = dict\(\)")
def pydataset_samples_once(side: Side) -> None:
    made: dict[int, Any] = {}

    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, i: int) -> Any:
            rows = range(4 * i, 4 * i + 4)
            return np.stack([self.sample(row) for row in rows]), np.ones((4, 1), "float32")

        def sample(self, i: int) -> Any:
            if side.cured and i in made:
                return made[i]
            compute(5)
            made[i] = np.ones(8, "float32")
            return made[i]

        def on_epoch_end(self) -> None:
            pass

    side.fit(timed_model(4), Rows(), epochs=5)


@cures("batches ready", r"class Ahead")
def long_fetch_ready(side: Side) -> None:
    def batches() -> Iterator[int]:
        for number in range(1, 401):
            if number % 50 == 0:
                wait(600)
            yield number

    def ahead(ready: int = 75) -> Iterator[int]:
        made = batches()
        with ThreadPoolExecutor(1) as pool:
            coming = deque(pool.submit(next, made, 0) for _ in range(ready))
            while number := coming.popleft().result():
                coming.append(pool.submit(next, made, 0))
                yield number

    with side.monitor() as monitor:
        for _ in monitor.batches(ahead() if side.cured else batches()):
            wait(8)


@cures("let processes|use threads, which start at once", r"use_multiprocessing = False")
def pydataset_processes_again(side: Side) -> None:
    processes = not side.cured
    dataset = _Rows.of(8, 5, workers=4, use_multiprocessing=processes)
    side.fit(timed_model(4), dataset, epochs=8)


# -- steps -----------------------------------------------------------------------------------------


@cures("run_functions_eagerly", r"run_functions_eagerly")
def functions_eagerly(side: Side) -> None:
    tf.config.run_functions_eagerly(not side.cured)
    try:
        model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(16) for _ in range(6))])
        model.compile("adam", "mse", jit_compile=False)
        side.fit(model, quick(150).map(lambda x, y: (x, tf.tile(y, (1, 16)))))
    finally:
        tf.config.run_functions_eagerly(False)


@cures("gets tensors of new shapes", "reduce_retracing=True")
def loop_lengths(side: Side) -> None:
    weights = tf.Variable(tf.ones((8, 8)))

    @tf.function(reduce_retracing=side.cured)
    def train_step(x):
        for _ in range(20):
            x = tf.tanh(x @ weights)
        return x

    with side.monitor() as monitor:
        for length in range(4, 64):
            x = np.ones((length, 8), "float32")
            with monitor.step():
                train_step(tf.constant(x))


@cures("Make each of them once", "")
def function_made_in_steps(side: Side) -> None:
    weights = tf.Variable(tf.ones((8, 8)))

    def train_step(x):
        for _ in range(20):
            x = tf.tanh(x @ weights)
        return x

    made = tf.function(train_step)
    with side.monitor() as monitor:
        for _ in range(60):
            with monitor.step():
                (made if side.cured else tf.function(train_step))(tf.ones((4, 8)))


@cures("calls a new function each time", "", backend="jax")
def function_jitted_in_steps(side: Side) -> None:
    weights = jax.numpy.ones((8, 8))

    def made():
        return jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, each: jax.numpy.tanh(each @ weights), x))

    once = made()
    with side.monitor() as monitor:
        for _ in range(60):
            with monitor.step():
                (once if side.cured else made())(np.ones((4, 8), "float32")).block_until_ready()


@cures("batch again with one number", r"drop_remainder=True")
def odd_batches(side: Side) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    sizes = [5 + i % 30 for i in range(60)]
    ready = [(np.ones((size, 8), "float32"), np.ones((size, 1), "float32")) for size in sizes]
    signature = (tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: iter(ready), output_signature=signature)
    side.fit(model, data.unbatch().batch(20, drop_remainder=True) if side.cured else data)


@cures("pad all inputs to one length", r"padded_batch\(")
def odd_lengths(side: Side) -> None:
    model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(9, 8, mask_zero=True)])
    model.add(keras.layers.GlobalAveragePooling1D())
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse", jit_compile=True)
    ready = [(np.ones((4, 2 + i % 30), "int32"), np.ones((4, 1), "float32")) for i in range(60)]
    signature = (tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: iter(ready), output_signature=signature)
    if side.cured:
        data = data.unbatch().padded_batch(4, padded_shapes=([64], [1]), drop_remainder=True)
    side.fit(model, data)


@cures("compute it once, and give it to the step", r"made = ")
def called_back(side: Side) -> None:
    def ranked(y):
        compute(8)
        return y

    class Ranked(keras.losses.Loss):
        def call(self, y, predicted):
            target = y if side.cured else tf.ensure_shape(tf.numpy_function(ranked, [y], tf.float32), y.shape)
            return tf.reduce_mean((predicted - target) ** 2, -1)

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", Ranked(), jit_compile=False)
    if side.cured:
        with side.timed():
            ranked(np.ones((4, 1), "float32"))
    side.fit(model, quick(400))


# -- JAX -------------------------------------------------------------------------------------------


@cures("jax.jit is switched off", "jax_disable_jit", "jax")
def jit_disabled(side: Side) -> None:
    weights = [jax.numpy.ones((8, 8))] * 6

    @jax.jit
    def train_step(weights, x):
        def loss(weights):
            value = x
            for weight in weights:
                value = jax.numpy.tanh(value @ weight)
            return value.sum()

        return [w - 0.01 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    x = jax.numpy.ones((4, 8))
    jax.config.update("jax_disable_jit", not side.cured)
    try:
        with side.monitor() as monitor:
            for _ in range(150):
                with monitor.step():
                    weights = train_step(weights, x)
    finally:
        jax.config.update("jax_disable_jit", False)


@cures("fill the smaller batches up", r"fill = np\.arange", "jax")
def odd_batches_jax(side: Side) -> None:
    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, i: int) -> Any:
            size = 5 + i % 30
            x, y = np.ones((size, 8), "float32"), np.ones((size, 1), "float32")
            if side.cured:
                fill = np.arange(34) % len(x)
                x, y = x[fill], y[fill]
            return x, y

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    side.fit(model, Rows())


# -- PyTorch ---------------------------------------------------------------------------------------


def _torch_loop(side: Side, loader: Any, epochs: int = 1, ms: float = 4) -> None:
    with side.monitor() as monitor:
        for _ in range(epochs):
            for _ in monitor.batches(loader):
                wait(ms)


@cures("Index whole batches", r"batch_sampler", "torch")
def loader_whole_batches(side: Side) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(60_000, 8), torch.randn(60_000, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=256)
    if side.cured:
        loader = torch.utils.data.DataLoader(loader.dataset, sampler=loader.batch_sampler, batch_size=None)
    _torch_loop(side, loader, ms=1)


@cures("fuse it: one pass", r"fused=True", "torch")
def fused_optimizer(side: Side) -> None:
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), fused=side.cured)
    with side.monitor() as monitor:
        for x in monitor.batches([torch.ones(8, 1024)] * 150):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def _augmented(side: Side, augmented: Callable[[], Any]) -> None:
    """Train a loop on batches that a generator draws anew."""
    _torch_loop(side, (torch.as_tensor(augmented()).reshape(-1, 8)[:32].float() for _ in range(60)))


@cures(r"interpolate linearly \(order=1\)", "", "torch")
def turned_by_splines(side: Side) -> None:
    from scipy import ndimage

    rng, photos = np.random.default_rng(0), np.random.default_rng(0).random((16, 64, 64), "float32")

    def turned(photo):
        return ndimage.rotate(photo, rng.uniform(-30, 30), reshape=False, order=1 if side.cured else 3)

    _augmented(side, lambda: np.stack([turned(photo) for photo in photos]))


@cures("draw and smooth that on a coarse grid", "", "torch")
def smoothed_fields(side: Side) -> None:
    from scipy import ndimage

    rng = np.random.default_rng(0)

    def field():
        if side.cured:
            small = ndimage.gaussian_filter(rng.uniform(-1, 1, (16, 16)), 2) / 8
            return ndimage.zoom(small, 8, order=1)
        return ndimage.gaussian_filter(rng.uniform(-1, 1, (128, 128)), 16)

    _augmented(side, lambda: np.stack([field() for _ in range(8)]))


@cures("Do that part of|do that part of", r"prepared = ", "torch")
def loader_prepared(side: Side) -> None:
    def prepare(sample):
        wait(2)
        return sample

    def join(samples):
        return torch.stack([prepare(sample) for sample in samples])

    data = [torch.ones(8) for _ in range(320)]
    with side.timed():
        ready = [prepare(sample) for sample in data] if side.cured else data
    loader = torch.utils.data.DataLoader(ready, batch_size=8, collate_fn=torch.stack if side.cured else join)
    _torch_loop(side, loader, epochs=5)


@cures("worker processes of a DataLoader", r"num_workers=\d+", "torch")
def loop_loader(side: Side) -> None:
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, i):
            wait(30)
            return torch.ones(4, 8)

    def batches():
        for i in range(200):
            yield Rows()[i]

    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=5, persistent_workers=True)
    _torch_loop(side, loader if side.cured else batches(), ms=8)


@cures("let it, in worker processes", r"collate_fn=\.\.\.", "torch")
def loader_wrapper(side: Side) -> None:
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 150

        def __getitem__(self, i):
            return torch.ones(8)

    def prepared(batch):
        wait(20)
        return batch

    def slow_join(samples):
        return prepared(torch.stack(samples))

    class Prepared:
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            for batch in self.loader:
                yield prepared(batch)

    if side.cured:
        loader = torch.utils.data.DataLoader(
            Rows(), batch_size=1, collate_fn=slow_join, num_workers=5, persistent_workers=True
        )
    else:
        loader = Prepared(torch.utils.data.DataLoader(Rows(), batch_size=1))
    _torch_loop(side, loader, ms=6)


@cures("Let worker processes prepare it ahead of time", r"num_workers=\d+", "torch")
def validation_workers(side: Side) -> None:
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> Any:
            wait(15)
            return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")

    workers = {"num_workers": 4, "persistent_workers": True} if side.cured else {}
    checks = torch.utils.data.DataLoader(Rows(), batch_size=None, **workers)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((320, 8), "float32")
    side.fit(model, x, x[:, :1], batch_size=4, epochs=8, validation_data=checks)


@cures("do it every 10th step", r"if step % 10 == 0", "torch")
def step_statistics(side: Side) -> None:
    torch.set_num_threads(1)
    model, seen = torch.nn.Linear(64, 64), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def describe(values):
        return sorted(str(value) for value in values)[0]

    monitor = side.own_monitor()
    with side.timed(), monitor:
        for step in range(120):
            with monitor.step():
                optimizer.zero_grad()
                loss = model(torch.ones(32, 64)).square().mean()
                loss.backward()
                optimizer.step()
                if step % (10 if side.cured else 1) == 0:
                    seen.append(describe(range(150_000)))


# -- measuring -------------------------------------------------------------------------------------


def measure(name: str) -> dict[str, Any]:
    """Record a program as it is, then time it as it is and cured in turns; the row of the table."""
    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import run_report

    cure = CURES[name]
    _train(cure, Side())  # what a process does once belongs to no side
    with tempfile.TemporaryDirectory() as folder:
        _train(cure, Side(False, folder))
        findings = [
            finding
            for recording in read_recordings(folder)
            for report in [run_report(recording)]
            for finding in [*report["findings"], *report["spans"]]
        ]
    printed = [finding["advice"] for finding in findings]
    advice = next(
        (a for a in printed if re.search(cure.says, a["text"], re.I) and re.search(cure.code, a["code"])), None
    )
    if advice is None:
        shown = "\n".join(f"  {finding['title']}: {finding['advice']['text']}" for finding in findings)
        raise SystemExit(f"{name}: not among what is printed:\n{shown or '  nothing'}")
    sides = [[_train(cure, Side(cured)).seconds for cured in (False, True)] for _ in range(ROUNDS)]
    pairs = [round(plain / cured, 2) for plain, cured in sides]
    return {
        "code": advice["code"],
        "question": advice["question"],
        "seconds": [[round(s, 2) for s in side] for side in sides],
        "pairs": pairs,
        "gain": sorted(pairs)[ROUNDS // 2],
    }


def _train(cure: Cure, side: Side) -> Side:
    keras.backend.clear_session()
    cure.train(side)
    return side


def main() -> None:
    """Measure the programs of one backend, and add their rows to a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    rows = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    for name in given.names or [name for name, cure in CURES.items() if cure.backend == backend]:
        try:
            rows[name] = measure(name)
        except SystemExit as missed:
            print(missed)
            continue
        print(name, rows[name]["pairs"], *rows[name]["code"].splitlines()[:1], flush=True)
        if given.json:
            given.json.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
