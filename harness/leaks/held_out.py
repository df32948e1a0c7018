"""Trainings by which no threshold was chosen: other models, loops, lengths, leaks and rates.

Each is a function of its case and a log directory, run in a process of its own by `record`. They
were recorded in three parts, each after the last change of the rule until then and judged once
before anything was mended. `python -m harness.leaks table` judges all of them by the rule as it is;
on the first try it found of

* part 2: 7 of 8 leaks, with 1 false alarm in 6 healthy runs, the onset within 5 % of the run in 6
  of 7 and the full step within 15 % in 7 of 7;
* part 3: 11 of 11 leaks, with no false alarm in 10 healthy runs, the onset and the full step of all 11.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from harness.leaks.programs import MIB, floats, paced

BATCH = 8
HELD_OUT: dict[str, HeldOut] = {}


@dataclass(frozen=True)
class HeldOut:
    """A training that is judged and never tuned by.

    Attributes:
        mib: kept in a step, 0 = healthy.
        onset: the step from which it grows.
        named: words for what grows, of which the evidence has to have one.
        ends: the share of the run at which the memory is called full.
        part: of what is held out, in the order of recording.
    """

    backend: str
    kind: str
    program: Callable[[HeldOut, str], None]
    mib: float = 0.0
    onset: int = 0
    steps: int = 240
    epochs: int = 6
    pause_s: float = 0.006
    named: tuple[str, ...] = ()
    ends: float = 1.0
    part: int = 1

    @property
    def name(self) -> str:
        return f"held_out-{self.backend}-{self.kind}"

    @property
    def leaks(self) -> bool:
        return self.mib > 0

    def train(self, log_dir: str) -> None:
        """Run it under our callback or monitor."""
        self.program(self, log_dir)


def training(backend: str, **about: Any) -> Callable[[Callable], Callable]:
    """Enter a program among the trainings that are held out."""

    def enter(program: Callable[[HeldOut, str], None]) -> Callable:
        case = HeldOut(backend, program.__name__, program, **about)
        HELD_OUT[case.name] = case
        return program

    return enter


# ---- models and loops ------------------------------------------------------------------


def _images() -> tuple[Any, tuple[int, ...]]:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((12, 12, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    ), (12, 12, 1)


def _series() -> tuple[Any, tuple[int, ...]]:
    import keras

    layers = keras.layers
    return keras.Sequential([layers.Input((6, 8)), layers.GRU(8), layers.Dropout(0.1), layers.Dense(1)]), (6, 8)


def _attention() -> tuple[Any, tuple[int, ...]]:
    import keras

    layers = keras.layers
    inputs = layers.Input((10, 16))
    mixed = layers.MultiHeadAttention(2, 8)(inputs, inputs)
    normed = layers.LayerNormalization()(layers.Add()([inputs, mixed]))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(normed))), (10, 16)


def _dense() -> tuple[Any, tuple[int, ...]]:
    import keras

    layers = keras.layers
    return keras.Sequential([layers.Input((32,)), layers.Dense(48, activation="gelu"), layers.Dense(1)]), (32,)


def _fit(case: HeldOut, log_dir: str, made: Any, *callbacks: Any, data: Any = None, **more: Any):
    """Fit a model to noise, or to `data`."""
    from gpu_util_callback import GpuUtilCallback

    model, shape = made
    if not getattr(model, "compiled", False):
        model.compile("adam", "mse")
    if data is None:
        samples = case.steps // case.epochs * BATCH
        data = np.random.rand(samples, *shape).astype("float32")
        more |= {"y": np.random.rand(samples, 1).astype("float32"), "batch_size": BATCH}
    ours = GpuUtilCallback(log_dir=log_dir, report=False, trace=None)
    model.fit(data, epochs=case.epochs, verbose=0, callbacks=[ours, paced(case.pause_s), *callbacks], **more)


def _loop(case: HeldOut, log_dir: str, step: Callable[[int], object]) -> None:
    """Do a loop's steps, counted from 1."""
    from gpu_util_callback import GpuUtilMonitor

    done = 0
    with GpuUtilMonitor(log_dir=log_dir, report=False, trace=None) as monitor:
        for _ in range(case.epochs):
            for _batch in monitor.batches(range(case.steps // case.epochs)):
                done += 1
                step(done)
                time.sleep(case.pause_s)


def _script() -> Any:
    """Return the main module, whose variables a script's are."""
    return sys.modules["__main__"]


def _after_batches(do: Callable[[int], object]) -> Any:
    """Return a callback that does something after each step, counted from 1."""
    import keras

    class AfterBatches(keras.callbacks.Callback):
        done = 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            do(self.done)

    return AfterBatches()


def _ones(mib: float) -> np.ndarray:
    return np.ones(floats(mib), "float32")


def _batches(case: HeldOut, shape: tuple[int, ...], sample: Callable[[int, int], object], **more):
    """Return batches of ones; `sample(epoch, index)` is called for each."""
    import keras

    class Batches(keras.utils.PyDataset):
        epoch = 0

        def __len__(self):
            return case.steps // case.epochs

        def __getitem__(self, index):
            sample(self.epoch, index)
            return np.ones((BATCH, *shape), "float32"), np.zeros((BATCH, 1), "float32")

        def on_epoch_end(self):
            self.epoch += 1

    return Batches(**more)


# ---- leaks in fits ---------------------------------------------------------------------


@training("torch", mib=0.9, steps=240, epochs=24, named=("objects",))
def predictions_of_epochs(case, log_dir):
    """What the model said at each epoch's end, by epoch."""
    import keras

    class Evaluates(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.by_epoch = {}

        def on_epoch_end(self, epoch, logs=None):
            self.by_epoch[epoch] = _ones(case.mib * case.steps / case.epochs)

    _fit(case, log_dir, _images(), Evaluates())


@training("jax", mib=1.1, onset=60, steps=300, epochs=5, named=("objects",))
def decoded_samples(case, log_dir):
    """A dataset that keeps what it decoded, under keys that never come again."""
    decoded, asked = {}, count()

    def sample(epoch, index):
        if next(asked) > case.onset:
            decoded[epoch, index] = [_ones(case.mib)]

    _fit(case, log_dir, _series(), data=_batches(case, (6, 8), sample))


@training("tensorflow", mib=2.4, onset=72, steps=180, epochs=5, named=("objects",))
def unbounded_lru_cache(case, log_dir):
    @cache
    def load(key):
        return [_ones(case.mib)]

    after = _after_batches(lambda done: load(done) if done > case.onset else None)
    _fit(case, log_dir, _attention(), after)


@training("jax", mib=0.6, onset=40, steps=200, epochs=4, named=("",))
def concatenated(case, log_dir):
    """One array that a copy replaces, longer by a step each time."""
    state = {"all": np.ones(1, "float32")}

    def more(done):
        if done > case.onset:
            state["all"] = np.concatenate([state["all"], _ones(case.mib)])

    _fit(case, log_dir, _images(), _after_batches(more))


@training("torch", mib=0.5, onset=100, steps=400, epochs=8, named=("",))
def native_library(case, log_dir):
    """Memory of a C library that is never freed."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    size = int(case.mib * MIB)

    def more(done):
        if done > case.onset:
            ctypes.memset(libc.malloc(ctypes.c_size_t(size)), 1, size)

    _fit(case, log_dir, _series(), _after_batches(more))


@training("tensorflow", mib=1.5, steps=240, epochs=1, named=("shuffle()",))
def shuffle_of_longer_and_longer(case, log_dir):
    """A shuffle buffer whose elements come sorted by length: each one longer than the last."""
    import tensorflow as tf

    model, shape = _series()
    buffer = 60
    longer = floats(case.mib / buffer)
    ds = tf.data.Dataset.range(1, case.steps + 1)
    ds = ds.map(lambda i: tf.ones((longer * i,))).shuffle(buffer)
    batch = tf.ones((BATCH, *shape)), tf.zeros((BATCH, 1))
    _fit(case, log_dir, (model, shape), data=ds.map(lambda x: batch))


@training("tensorflow", mib=0.8, steps=300, epochs=6, named=("cache()",))
def cache_after_repeat(case, log_dir):
    """A cache that is never complete, since what it keeps has no end."""
    import tensorflow as tf

    model, shape = _images()
    size = floats(case.mib)
    ds = tf.data.Dataset.range(50).repeat()
    ds = ds.map(lambda i: tf.fill((size,), tf.cast(i, tf.float32))).cache()
    batch = tf.ones((BATCH, *shape)), tf.zeros((BATCH, 1))
    ds = ds.map(lambda x: batch)
    _fit(case, log_dir, (model, shape), data=ds, steps_per_epoch=case.steps // case.epochs)


@training("torch", mib=0.7, onset=0, steps=320, epochs=8, named=("objects",))
def queue_that_nobody_reads(case, log_dir):
    import queue

    import torch

    waiting = queue.Queue()
    _fit(case, log_dir, _images(), _after_batches(lambda done: waiting.put(torch.ones(floats(case.mib)))))


@training("jax", mib=0.4, onset=150, steps=450, epochs=9, named=("objects",))
def lines_of_a_log(case, log_dir):
    import keras

    class Logs(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.lines, self.done = [], 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            if self.done > case.onset:
                line = f"step {self.done} "
                self.lines.append(line * int(case.mib * MIB / len(line)))

    _fit(case, log_dir, _series(), Logs())


@training("tensorflow", mib=0.8, steps=320, epochs=8, named=("objects",))
def outputs_of_validations(case, log_dir):
    """Outputs of every validation, kept for a plot."""
    import keras

    class Outputs(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_test_batch_end(self, batch, logs=None):
            self.seen.append(_ones(case.mib * case.steps / case.epochs / 4))

    model, shape = _attention()
    held = np.ones((4 * BATCH, *shape), "float32"), np.ones((4 * BATCH, 1), "float32")
    _fit(case, log_dir, (model, shape), Outputs(), validation_data=held, validation_batch_size=8)


@training("torch", mib=0.6, steps=240, epochs=2, named=("worker processes",))
def objects_copied_by_workers(case, log_dir):
    """Python objects of a dataset, whose pages every worker copies as it touches them."""
    import torch

    model, shape = _series()
    samples = case.steps // case.epochs * BATCH
    each = int(case.mib * MIB * case.steps / samples / 56)  # bytes of a small string

    class Objects(torch.utils.data.Dataset):
        def __init__(self):
            self.words = [f"w{i:06}" for i in range(samples * each)]

        def __len__(self):
            return samples

        def __getitem__(self, index):
            words = self.words[index * each : (index + 1) * each]
            return np.full(shape, len(words), "float32"), np.zeros(1, "float32")

    loader = torch.utils.data.DataLoader(Objects(), batch_size=BATCH, num_workers=2, persistent_workers=True)
    _fit(case, log_dir, (model, shape), data=loader)


# ---- leaks in loops --------------------------------------------------------------------


@training("torch", mib=0.5, onset=70, steps=280, epochs=7, named=("objects",))
def losses_with_their_history(case, log_dir):
    import torch

    script, weight = _script(), torch.ones(floats(case.mib), requires_grad=True)
    script.losses = []

    def step(done):
        loss = (weight * torch.rand(len(weight))).sum()
        loss.backward(retain_graph=True)
        weight.grad = None
        if done > case.onset:
            script.losses.append(loss)

    _loop(case, log_dir, step)


@training("jax", mib=0.5, onset=80, steps=400, epochs=4, named=("objects",))
def snapshots_of_weights(case, log_dir):
    """A copy of all weights every 16 steps."""
    import jax
    import jax.numpy as jnp

    script = _script()
    script.snapshots = []
    size = floats(8 * case.mib)
    weights = {"kernel": jnp.ones((size,)), "bias": jnp.zeros((size,))}
    update = jax.jit(lambda tree: jax.tree.map(lambda w: 0.99 * w, tree))

    def step(done):
        nonlocal weights
        weights = update(weights)
        if done > case.onset and done % 16 == 0:
            script.snapshots.append({name: np.array(w) for name, w in weights.items()})

    _loop(case, log_dir, step)


@training("tensorflow", mib=1.3, onset=120, steps=240, epochs=4, named=("objects",))
def outputs_of_an_eager_loop(case, log_dir):
    import tensorflow as tf

    weight = tf.Variable(tf.ones((64, 64)))
    outputs = {}

    def step(done):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.ones((8, 64)) @ weight) ** 2)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        if done > case.onset:
            outputs[done] = [tf.ones((floats(case.mib),)) * loss]

    _loop(case, log_dir, step)


@training("tensorflow", mib=0.3, onset=0, steps=200, epochs=4, named=("added to the graph",))
def constants_added_to_a_graph(case, log_dir):
    """Inputs that each become an operation of a graph, as in programs of TensorFlow 1."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        data = _ones(case.mib)
        _loop(case, log_dir, lambda done: session.run(tf.reduce_sum(tf.constant(data))))


@training("jax", mib=0.2, steps=320, epochs=4, pause_s=0.0, named=("compilation",))
def compiled_for_every_length(case, log_dir):
    """Batches of ever new lengths, each of which a step is compiled for."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def update(weight, x):
        for _ in range(6):
            x = jnp.tanh(x) * weight
        return weight - 0.01 * x.mean()

    weight = jnp.ones(())

    def step(done):
        nonlocal weight
        weight = update(weight, np.ones((8 + done,), "float32")).block_until_ready()

    _loop(case, log_dir, step)


# ---- healthy ---------------------------------------------------------------------------


@training("torch", steps=300, epochs=3)
def average_of_weights(case, log_dir):
    """A second copy of everything, from half-way on."""
    kept = {}

    def average(done):
        if done > 150 and not kept:
            kept["average"] = _ones(60)

    _fit(case, log_dir, _images(), _after_batches(average))


@training("tensorflow", steps=260, epochs=4)
def last_outputs(case, log_dir):
    last = deque(maxlen=45)
    _fit(case, log_dir, _attention(), _after_batches(lambda done: last.append(_ones(1.0))))


@training("jax", steps=350, epochs=5)
def collected_now_and_then(case, log_dir):
    """Reference cycles, collected by hand every 60 steps."""
    import gc

    def cycle(done):
        one = {"array": _ones(0.8)}
        one["itself"] = one
        if done % 60 == 0:
            gc.collect()

    gc.disable()
    _fit(case, log_dir, _series(), _after_batches(cycle))


@training("torch", steps=240, epochs=2)
def mapped_file(case, log_dir):
    """Samples of a mapped file: its pages stay in memory as long as there is room."""
    path = Path(tempfile.mkdtemp()) / "samples.bin"
    path.write_bytes(b"\1" * (240 * MIB // 2))
    mapped = np.memmap(path, dtype="float32", mode="r").reshape(case.steps, -1)
    _fit(case, log_dir, _images(), _after_batches(lambda done: mapped[done - 1].sum()))
    path.unlink()


@training("tensorflow", steps=300, epochs=6)
def unfrozen_half_way(case, log_dir):
    """A model whose first layers train from the fourth epoch on: traced twice."""
    import keras

    model, shape = _images()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.layers[0].trainable = False

    class Unfreezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                self.model.layers[0].trainable = True
                self.model.make_train_function(force=True)

    _fit(case, log_dir, (model, shape), Unfreezes())


@training("jax", steps=320, epochs=8)
def longer_now_and_then(case, log_dir):
    """A curriculum: sequences get longer in four stages, each compiled once."""
    import keras

    layers = keras.layers
    model = keras.Sequential([layers.Input((None, 4)), layers.GRU(6), layers.Dense(1)])

    class Stages(keras.utils.PyDataset):
        epoch = 0

        def __len__(self):
            return case.steps // case.epochs

        def __getitem__(self, index):
            length = 4 * (1 + min(3, self.epoch // 2))
            return np.ones((BATCH, length, 4), "float32"), np.zeros((BATCH, 1), "float32")

        def on_epoch_end(self):
            self.epoch += 1

    _fit(case, log_dir, (model, (None, 4)), data=Stages())


@training("torch", steps=240, epochs=4)
def workers_of_each_epoch(case, log_dir):
    """Workers that end with each epoch, and keep what they loaded until then."""
    import torch

    from harness.leaks.programs import Remembers

    dataset = Remembers(case.steps // case.epochs * 16, floats(0.8), 0)
    model, shape = _dense()
    _fit(case, log_dir, (model, shape), data=torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=2))


@training("tensorflow", steps=400, epochs=20)
def best_weights_and_checkpoints(case, log_dir):
    import keras

    folder = Path(tempfile.mkdtemp())
    held = np.ones((16, 6, 8), "float32"), np.ones((16, 1), "float32")
    _fit(
        case,
        log_dir,
        _series(),
        keras.callbacks.EarlyStopping("loss", patience=99, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True),
        validation_data=held,
    )


@training("jax", steps=400, epochs=4)
def bounded_lru_cache(case, log_dir):
    @lru_cache(maxsize=100)
    def load(key):
        return _ones(0.5)

    random = np.random.default_rng(7)
    after = _after_batches(lambda done: load(int(random.integers(0, 400))))
    _fit(case, log_dir, _attention(), after)


@training("torch", steps=300, epochs=5)
def steps_of_uneven_size(case, log_dir):
    """A step's own memory varies by a hundred MiB and is given back."""
    random = np.random.default_rng(5)

    def use(done):
        held = _ones(float(random.integers(1, 120)))
        time.sleep(0.004)
        del held

    _fit(case, log_dir, _series(), _after_batches(use))


@training("tensorflow", steps=240, epochs=3)
def prefetched(case, log_dir):
    """A prefetch buffer that fills while the first steps are done."""
    import tensorflow as tf

    model, shape = _images()
    size = floats(1.0)
    ds = tf.data.Dataset.range(case.steps // case.epochs).repeat(case.epochs)
    ds = ds.map(lambda i: tf.fill((size,), tf.cast(i, tf.float32))).prefetch(64)
    batch = tf.ones((BATCH, *shape)), tf.zeros((BATCH, 1))
    _fit(case, log_dir, (model, shape), data=ds.map(lambda x: batch), steps_per_epoch=case.steps // case.epochs)


@training("jax", steps=900, epochs=30, pause_s=0.002)
def many_short_epochs(case, log_dir):
    _fit(case, log_dir, _dense())


@training("torch", steps=320, epochs=8)
def predictions_of_the_last_epoch(case, log_dir):
    import keras

    class Predicts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.predict(np.ones((64, 12, 12, 1), "float32"), verbose=0)
            self.last = _ones(40 + epoch % 3)

    _fit(case, log_dir, _images(), Predicts())


@training("tensorflow", steps=210, epochs=3)
def cache_of_a_third(case, log_dir):
    """A cache that fills for a third of the training, and is complete then."""
    import tensorflow as tf

    model, shape = _series()
    size = floats(1.2)
    ds = tf.data.Dataset.range(case.steps // case.epochs)
    ds = ds.map(lambda i: tf.fill((size,), tf.cast(i, tf.float32))).cache()
    batch = tf.ones((BATCH, *shape)), tf.zeros((BATCH, 1))
    _fit(case, log_dir, (model, shape), data=ds.map(lambda x: batch))


@training("tensorflow", steps=320, epochs=4)
def eager_loop(case, log_dir):
    import tensorflow as tf

    weight = tf.Variable(tf.ones((256, 256)))
    sums = []

    def step(done):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.ones((64, 256)) @ weight) ** 2)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        sums.append(float(loss))

    _loop(case, log_dir, step)


# ---- again, recorded when the rule was as it is: other backends, rates and lengths -------


def _again(program: Callable[[HeldOut, str], None], backend: str, **about: Any) -> None:
    case = HeldOut(backend, f"{program.__name__}-again", program, part=2, **about)
    HELD_OUT[case.name] = case


_again(decoded_samples, "torch", mib=0.6, onset=130, steps=260, epochs=4, named=("objects",))
_again(unbounded_lru_cache, "jax", mib=1.7, onset=30, steps=210, epochs=3, named=("objects",))
_again(concatenated, "tensorflow", mib=0.8, onset=90, steps=180, epochs=3, named=("",))
_again(outputs_of_validations, "jax", mib=0.6, steps=400, epochs=10, named=("objects",))
_again(predictions_of_epochs, "tensorflow", mib=0.5, steps=300, epochs=15, named=("objects",))
_again(native_library, "jax", mib=0.9, onset=60, steps=240, named=("",))
_again(lines_of_a_log, "tensorflow", mib=0.9, steps=160, epochs=4, named=("objects",))
_again(objects_copied_by_workers, "torch", mib=1.0, steps=160, epochs=2, named=("worker processes",))
_again(average_of_weights, "jax", steps=320, epochs=4)
_again(collected_now_and_then, "torch", steps=280, epochs=4)
_again(steps_of_uneven_size, "tensorflow", steps=260, epochs=2)
_again(bounded_lru_cache, "tensorflow", steps=350, epochs=7)
_again(best_weights_and_checkpoints, "torch", steps=300, epochs=15)
_again(mapped_file, "jax", steps=240, epochs=6)


# ---- once more, of other kinds -----------------------------------------------------------


def third(backend: str, **about: Any) -> Callable[[Callable], Callable]:
    """Enter a program among those recorded last."""
    return training(backend, part=3, **about)


@third("torch", mib=0.8, onset=110, steps=330, epochs=3, named=("objects", "outputs"))
def hooks_that_are_never_removed(case, log_dir):
    """A hook of a layer, registered again in each step with what it saw."""
    import torch

    layer, seen = torch.nn.Linear(4, 4), count()

    def more(done):
        if done > case.onset:
            held = torch.ones(floats(case.mib))
            layer.register_forward_hook(lambda *_, held=held: next(seen))

    _fit(case, log_dir, _series(), _after_batches(more))


@third("tensorflow", mib=1.2, onset=0, steps=210, epochs=7, named=("new traces",))
def functions_made_in_the_loop(case, log_dir):
    """A function that is decorated in each step, and kept with the constant in its graph."""
    import tensorflow as tf

    functions = {}

    def more(done):
        data = np.random.rand(floats(case.mib)).astype("float32")
        functions[done] = tf.function(lambda x: tf.reduce_sum(tf.constant(data)) + x)
        functions[done](tf.constant(1.0))

    _fit(case, log_dir, _dense(), _after_batches(more))


@third("jax", mib=0.3, steps=260, epochs=2, pause_s=0.002, named=("compilation", "objects"))
def jitted_in_the_loop(case, log_dir):
    """A lambda that is compiled in each step: nothing finds the one before."""
    import jax
    import jax.numpy as jnp

    made = []

    def step(done):
        data = np.random.rand(floats(case.mib)).astype("float32")
        made.append(jax.jit(lambda x: (x * data[0]).sum() + data.sum()))
        made[-1](jnp.ones((32,))).block_until_ready()

    _loop(case, log_dir, step)


@third("torch", mib=0.25, onset=180, steps=900, epochs=6, pause_s=0.004, named=("objects",))
def replay_without_a_bound(case, log_dir):
    """Transitions of reinforcement learning, kept for ever, collected after a warm-up."""
    import torch

    script = _script()
    script.replay = deque()
    policy = torch.nn.Linear(64, 4)

    def step(done):
        state = torch.rand(1, 64)
        action = int(policy(state).argmax())
        if done > case.onset:
            script.replay.append((_ones(case.mib), action, _ones(0.01)))

    _loop(case, log_dir, step)


@third("tensorflow", mib=0.7, onset=90, steps=360, epochs=4, named=("objects",))
def histograms_by_layer(case, log_dir):
    """Lists inside a dictionary, one for each layer."""
    import keras

    class Histograms(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.by_layer = {}
            self.done = 0

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            if self.done > case.onset:
                for layer in self.model.layers:
                    share = case.mib / len(self.model.layers)
                    self.by_layer.setdefault(layer.name, []).append(_ones(share))

    _fit(case, log_dir, _attention(), Histograms())


@third("torch", mib=0.75, onset=0, steps=280, epochs=2, named=("objects",))
def batches_of_workers(case, log_dir):
    """Batches that came through shared memory, and stay there."""
    import keras
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return case.steps // case.epochs * BATCH

        def __getitem__(self, index):
            return np.full(floats(case.mib / BATCH), index, "float32"), np.zeros(1, "float32")

    class Keeps(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.batches = []

    keeps = Keeps()

    def collate(samples):
        return torch.utils.data.default_collate(samples)

    class Means(keras.layers.Layer):
        def call(self, x):
            keeps.batches.append(x)
            return keras.ops.mean(x, axis=-1, keepdims=True)

    layers = keras.layers
    size = floats(case.mib / BATCH)
    model = keras.Sequential([layers.Input((size,)), Means(), layers.Dense(1)])
    keeps.batches.clear()
    loader = torch.utils.data.DataLoader(Samples(), batch_size=BATCH, num_workers=1, collate_fn=collate)
    _fit(case, log_dir, (model, (size,)), keeps, data=loader)


@third("tensorflow", mib=2.0, onset=60, steps=150, epochs=5, named=("",))
def records_of_a_log(case, log_dir):
    """A handler of the log with room for all records, and arrays among their arguments."""
    import logging
    from logging.handlers import MemoryHandler

    log = logging.getLogger("held_out")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(MemoryHandler(10**6, flushLevel=logging.CRITICAL + 1))

    def more(done):
        if done > case.onset:
            log.info("outputs of step %d: %s", done, _ones(case.mib))

    _fit(case, log_dir, _images(), _after_batches(more))


@third("jax", mib=0.55, onset=75, steps=300, epochs=6, named=("objects",))
def cycles_without_a_collector(case, log_dir):
    """Reference cycles, once the collector is switched off for speed."""
    import gc

    class Node:
        def __init__(self):
            self.data, self.itself = _ones(case.mib), self

    def more(done):
        if done == case.onset:
            gc.collect()
            gc.disable()
        Node()

    _fit(case, log_dir, _dense(), _after_batches(more))


@third("jax", mib=0.5, onset=0, steps=320, epochs=1, pause_s=0.012, named=("objects",))
def producer_that_is_faster(case, log_dir):
    """A thread that puts two batches into a queue without end for each that is taken."""
    import queue
    import threading

    import jax.numpy as jnp

    waiting, going = queue.Queue(), threading.Event()

    def produce():
        while not going.wait(case.pause_s / 2):
            waiting.put(_ones(case.mib))

    threading.Thread(target=produce, daemon=True).start()
    _loop(case, log_dir, lambda done: jnp.ones(4) * waiting.get()[0])
    going.set()


@third("tensorflow", mib=1.0, onset=0, steps=240, epochs=6, named=("objects",))
def generator_that_remembers(case, log_dir):
    """A generator behind `from_generator` that keeps all it has given."""
    import tensorflow as tf

    model, shape = _dense()
    given = {}

    def samples():
        for number in range(case.steps // case.epochs):
            given[len(given)] = [_ones(case.mib)]
            yield np.full((BATCH, *shape), number, "float32"), np.zeros((BATCH, 1), "float32")

    made = tf.TensorSpec((BATCH, *shape)), tf.TensorSpec((BATCH, 1))
    _fit(case, log_dir, (model, shape), data=tf.data.Dataset.from_generator(samples, output_signature=made))


@third("torch", mib=0.4, steps=400, epochs=5, named=("",))
def optimizer_of_more_and_more(case, log_dir):
    """Parameters added to the optimizer every ten steps, with their state."""
    import torch

    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.Adam([weight])

    def step(done):
        if done % 10 == 0:
            size = floats(10 * case.mib / 4)  # with its gradient and two moments
            added = torch.nn.Parameter(torch.ones(size))
            optimizer.add_param_group({"params": [added]})
            (added.sum() + weight.sum()).backward()
            optimizer.step()

    _loop(case, log_dir, step)


@third("torch", steps=400, epochs=8)
def ring_of_transitions(case, log_dir):
    """An array of zeros, whose pages are taken as it is filled for 60 % of the run."""
    size = floats(0.5)
    ring = np.zeros((240, size), "float32")

    def fill(done):
        ring[done % len(ring)] = done

    _fit(case, log_dir, _dense(), _after_batches(fill))


@third("tensorflow", steps=420, epochs=6)
def vocabulary(case, log_dir):
    """Words of texts: ever fewer of them are new."""
    random = np.random.default_rng(11)
    words = {}

    def read(done):
        for word in random.zipf(1.3, 4000).tolist():
            words.setdefault(word, f"a word of the text: {word}" * 3)

    _fit(case, log_dir, _series(), _after_batches(read))


@third("jax", steps=360, epochs=6)
def lengths_in_buckets(case, log_dir):
    """Twelve lengths in a random order, each compiled when it comes first."""
    import jax
    import jax.numpy as jnp

    random = np.random.default_rng(2)

    @jax.jit
    def use(x):
        for _ in range(30):
            x = jnp.tanh(x) @ jnp.ones((8, 8))
        return x

    after = _after_batches(lambda done: use(np.ones((16 * int(random.integers(1, 13)), 8), "f4")))
    _fit(case, log_dir, _dense(), after)


@third("torch", steps=350, epochs=7)
def outputs_of_some_steps(case, log_dir):
    """Outputs of 25 steps, evaluated together and dropped."""
    import torch

    outputs = []

    def step(done):
        outputs.append(torch.ones(floats(2.2)))
        if len(outputs) == 25:
            torch.stack([one.mean() for one in outputs])
            outputs.clear()

    _loop(case, log_dir, step)


@third("tensorflow", steps=300, epochs=10)
def moving_average_and_backups(case, log_dir):
    import keras

    model, shape = _images()
    model.compile(keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=40), "mse")
    folder = tempfile.mkdtemp()
    held = np.ones((64, *shape), "float32"), np.ones((64, 1), "float32")
    _fit(
        case, log_dir, (model, shape), keras.callbacks.BackupAndRestore(folder), validation_data=held, validation_freq=2
    )


@third("jax", steps=360, epochs=3)
def saved_by_a_thread(case, log_dir):
    """A copy of the weights, held while a thread writes it, every 60 steps."""
    import threading

    import jax.numpy as jnp

    weights = jnp.ones((floats(80),))

    def write(copy):
        time.sleep(0.25)
        copy.sum()

    def step(done):
        if done % 60 == 0:
            threading.Thread(target=write, args=(np.array(weights),)).start()

    _loop(case, log_dir, step)


@third("tensorflow", steps=320, epochs=4)
def files_interleaved(case, log_dir):
    """Files of records, read a few at a time with large buffers."""
    import tensorflow as tf

    folder = Path(tempfile.mkdtemp())
    model, shape = _dense()
    names = [str(folder / f"{number}.records") for number in range(8)]
    for name in names:
        with tf.io.TFRecordWriter(name) as writer:
            for _ in range(case.steps // case.epochs // 8):
                writer.write(np.ones(floats(0.5), "float32").tobytes())
    ds = (
        tf.data.Dataset.from_tensor_slices(names)
        .interleave(
            lambda name: tf.data.TFRecordDataset(name, buffer_size=4 * MIB), cycle_length=4, num_parallel_calls=2
        )
        .prefetch(8)
    )
    batch = tf.ones((BATCH, *shape)), tf.zeros((BATCH, 1))
    _fit(case, log_dir, (model, shape), data=ds.map(lambda record: batch))


@third("torch", steps=300, epochs=3)
def workers_that_fetch_ahead(case, log_dir):
    import torch

    model, shape = _images()

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return case.steps // case.epochs * BATCH

        def __getitem__(self, index):
            work = _ones(1.0 + index % 5)
            return np.full(shape, work.mean(), "float32"), np.zeros(1, "float32")

    loader = torch.utils.data.DataLoader(
        Samples(), batch_size=BATCH, num_workers=2, prefetch_factor=8, persistent_workers=True
    )
    _fit(case, log_dir, (model, shape), data=loader)


@third("jax", steps=330, epochs=3)
def predictions_until_the_epoch_ends(case, log_dir):
    """A tooth of the saw for each of three epochs, as a metric over all samples has."""
    import keras

    class Auc(keras.callbacks.Callback):
        seen = ()

        def on_epoch_begin(self, epoch, logs=None):
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(_ones(0.9))

        def on_epoch_end(self, epoch, logs=None):
            np.sort(np.concatenate([one[:1000] for one in self.seen]))
            self.seen = []

    _fit(case, log_dir, _images(), Auc())


@third("torch", steps=450, epochs=9)
def larger_images_in_stages(case, log_dir):
    """Images that get larger every three epochs, with larger activations."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((None, None, 1)), layers.Conv2D(16, 3), layers.GlobalAveragePooling2D(), layers.Dense(1)]
    )

    class Stages(keras.utils.PyDataset):
        epoch = 0

        def __len__(self):
            return case.steps // case.epochs

        def __getitem__(self, index):
            side = 32 * (1 + self.epoch // 3)
            return np.ones((BATCH, side, side, 1), "float32"), np.zeros((BATCH, 1), "float32")

        def on_epoch_end(self):
            self.epoch += 1

    _fit(case, log_dir, (model, (None, None, 1)), data=Stages())
