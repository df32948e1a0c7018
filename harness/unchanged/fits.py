"""Seeded fits of tiny models, each a cell of the matrix: a kind of input in a mode of training."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

BATCH, WIDTH, BATCHES, EPOCHS = 8, 4, 7, 3
ROWS = BATCH * BATCHES - 3  # the last batch is a short one
BACKEND = keras.backend.backend()


def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, drawn from NumPy's seeded generator."""
    x = np.random.rand(ROWS, WIDTH).astype("float32")
    return x, (x.sum(1, keepdims=True) > WIDTH / 2).astype("float32")


# ---- kinds of input: what `fit` is given ---------------------------------------------------------


def given_arrays() -> dict[str, Any]:
    x, y = arrays()
    return {"x": x, "y": y, "batch_size": BATCH}


def slices():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(32, seed=1).batch(BATCH)


def shuffled_without_seed() -> dict[str, Any]:
    import tensorflow as tf

    return {"x": tf.data.Dataset.from_tensor_slices(arrays()).shuffle(32).batch(BATCH).prefetch(2)}


def filtered() -> dict[str, Any]:
    return {"x": slices().filter(lambda x, y: True)}


def prefetched() -> dict[str, Any]:
    import tensorflow as tf

    flipped = slices().map(lambda x, y: (x + tf.random.uniform([]) / 9, y), num_parallel_calls=1)
    return {"x": flipped.filter(lambda x, y: True).prefetch(tf.data.AUTOTUNE)}


def text_lines() -> dict[str, Any]:
    import tensorflow as tf

    x, y = arrays()
    path = Path(tempfile.mkdtemp()) / "rows.csv"
    np.savetxt(path, np.hstack([x, y]), delimiter=",", fmt="%.6f")

    def parse(line):
        row = tf.stack(tf.io.decode_csv(line, [0.0] * (WIDTH + 1)))
        return row[:WIDTH], row[WIDTH:]

    return {"x": tf.data.TextLineDataset(str(path)).map(parse).batch(BATCH)}


def tf_records() -> dict[str, Any]:
    import tensorflow as tf

    x, y = arrays()
    path = str(Path(tempfile.mkdtemp()) / "rows.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        for row in np.hstack([x, y]):
            file.write(row.tobytes())

    def parse(record):
        row = tf.io.decode_raw(record, tf.float32)
        return tf.ensure_shape(row[:WIDTH], [WIDTH]), tf.ensure_shape(row[WIDTH:], [1])

    return {"x": tf.data.TFRecordDataset(path).map(parse).shuffle(16, seed=2).batch(BATCH)}


def repeated() -> dict[str, Any]:
    return {"x": slices().filter(lambda x, y: True).repeat(), "steps_per_epoch": BATCHES - 2}


def from_generator() -> dict[str, Any]:
    import tensorflow as tf

    x, y = arrays()
    spec = tuple(tf.TensorSpec((None, n), tf.float32) for n in (WIDTH, 1))
    dataset = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)), output_signature=spec
    )
    return {"x": dataset}


def generator() -> dict[str, Any]:
    def batches():
        while True:
            rows = np.random.permutation(ROWS)[:BATCH]
            yield x[rows], y[rows]

    x, y = arrays()
    return {"x": batches(), "steps_per_epoch": BATCHES}


def generator_that_ends() -> dict[str, Any]:
    x, y = arrays()
    return {"x": ((x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH))}


def py_dataset() -> dict[str, Any]:
    class Rows(keras.utils.PyDataset):
        def __init__(self, x, y):
            super().__init__()
            self.x, self.y = x, y

        def __len__(self):
            return BATCHES

        def __getitem__(self, index):
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return self.x[rows], self.y[rows]

    return {"x": Rows(*arrays())}


def torch_loader() -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays()))
    return {"x": torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": given_arrays,
    "tf.data": lambda: {"x": slices()},
    "tf.data, shuffled without seed": shuffled_without_seed,
    "filter": filtered,
    "filter, random map, prefetch": prefetched,
    "TextLine": text_lines,
    "TFRecord": tf_records,
    "repeat, steps_per_epoch": repeated,
    "from_generator": from_generator,
    "endless generator": generator,
    "generator that ends": generator_that_ends,
    "PyDataset": py_dataset,
    "torch DataLoader": torch_loader,
}


# ---- modes of training ---------------------------------------------------------------------------


@dataclass
class Mode:
    """How a model is compiled and fitted.

    Args:
        model: its class.
        compiled, fitted: arguments of `compile` and `fit`, made for each fit.
        policy: of dtypes.
        around: entered around the whole.
        windows: the steps that our callback profiles.
        fits: how many of `fit` follow each other.
        losses: that of the first fit, and those with which the model is compiled again before each fit after it.
    """

    model: type = keras.Model
    compiled: Callable[[], dict[str, Any]] = dict
    fitted: Callable[[], dict[str, Any]] = dict
    policy: str = "float32"
    around: Callable[[], Any] = contextlib.nullcontext
    windows: Any = "off"
    fits: int = 1
    losses: tuple[str, ...] = ("binary_crossentropy",)


def noise(shape):
    """Random numbers from the framework's own generator, without a seed of their own."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.random.uniform(shape)
    if BACKEND == "torch":
        import torch

        return torch.rand(tuple(shape))
    return keras.random.uniform(tuple(shape), seed=7)


class Noisy(keras.Model):
    """Draws random numbers in its train step, of the batch's shape and of a fixed one."""

    def train_step(self, data, *more):
        if BACKEND == "jax":
            x, y = more[0]
            return super().train_step(data, (x + noise(x.shape) / 9, y))
        import tensorflow as tf

        x, y = data
        shape = tf.shape(x) if BACKEND == "tensorflow" else x.shape
        return super().train_step((x + noise(shape) / 9 + noise([WIDTH]) / 9, y))


class WithSideEffects(keras.Model):
    """Counts its steps in ways that need no batch: in Python, and in a variable."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import tensorflow as tf

        self.python_calls = 0
        self.steps = tf.Variable(0)

    def _count(self):
        self.python_calls += 1
        return np.float32(0)

    def train_step(self, data):
        import tensorflow as tf

        self.steps.assign_add(1)
        zero = tf.ensure_shape(tf.numpy_function(self._count, [], tf.float32), [])
        x, y = data
        return super().train_step((x + zero, y))


def schedule() -> dict[str, Any]:
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    return {"optimizer": keras.optimizers.AdamW(rate, clipnorm=1.0, use_ema=True)}


def validated() -> dict[str, Any]:
    x, y = arrays()
    return {"validation_data": (x[:20], y[:20]), "validation_batch_size": 6}


def others() -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    public = keras.callbacks
    return {
        **validated(),
        "callbacks": [
            public.ModelCheckpoint(str(folder / "best.weights.h5"), save_weights_only=True),
            public.BackupAndRestore(str(folder / "backup")),
            public.EarlyStopping(monitor="loss", patience=5),
            public.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=1.0),
            public.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
            public.CSVLogger(str(folder / "log.csv")),
            public.TerminateOnNaN(),
            public.SwapEMAWeights() if hasattr(public, "SwapEMAWeights") else public.Callback(),
            *([public.TensorBoard(str(folder))] if BACKEND == "tensorflow" else []),
        ],
    }


def with_ema() -> dict[str, Any]:
    return {"optimizer": keras.optimizers.Adam(use_ema=True)}


@contextlib.contextmanager
def op_determinism() -> Iterator[None]:
    from tensorflow.python.framework import config

    config.enable_op_determinism()
    try:
        yield
    finally:
        config.disable_op_determinism()


@contextlib.contextmanager
def mirrored() -> Iterator[None]:
    import tensorflow as tf

    cpus = [f"CPU:{device.name[-1]}" for device in tf.config.list_logical_devices("CPU")]
    with tf.distribute.MirroredStrategy(cpus).scope():
        yield


MODES: dict[str, Mode] = {
    "graph": Mode(),
    "jit_compile": Mode(compiled=lambda: {"jit_compile": True}),
    "run_eagerly": Mode(compiled=lambda: {"run_eagerly": True}),
    "steps_per_execution=4": Mode(compiled=lambda: {"steps_per_execution": 4}),
    "jit_compile, steps_per_execution=4": Mode(compiled=lambda: {"jit_compile": True, "steps_per_execution": 4}),
    "op determinism": Mode(around=op_determinism),
    "op determinism, steps_per_execution=4": Mode(around=op_determinism, compiled=lambda: {"steps_per_execution": 4}),
    "mixed precision": Mode(policy="mixed_bfloat16"),
    "random ops in train_step": Mode(model=Noisy),
    "random ops in train_step, jit_compile": Mode(model=Noisy, compiled=lambda: {"jit_compile": True}),
    "random ops in train_step, run_eagerly": Mode(model=Noisy, compiled=lambda: {"run_eagerly": True}),
    "side effects in train_step": Mode(model=WithSideEffects),
    "learning rate schedule, EMA": Mode(compiled=schedule),
    "validation_data": Mode(fitted=validated),
    "class_weight": Mode(fitted=lambda: {"class_weight": {0: 1.0, 1: 3.0}}),
    "two fits": Mode(model=Noisy, fits=2),
    "compiled again": Mode(fits=2, losses=("binary_crossentropy", "mean_squared_error")),
    "other callbacks": Mode(compiled=with_ema, fitted=others),
    "profiler windows": Mode(windows=[(2, 4), (9, 11)]),
    "MirroredStrategy": Mode(around=mirrored),
}


class Batches(keras.callbacks.Callback):
    """Keeps the logs of each batch."""

    def __init__(self):
        super().__init__()
        self.logs: list[dict] = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append({name: float(value) for name, value in (logs or {}).items()})


def fit(kind: str, mode: str, log_dir: str | None) -> dict[str, Any]:
    """What a seeded fit leaves behind, by name; recorded by us where there is a `log_dir`."""
    how = MODES[mode]
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(how.policy)
    with how.around():
        given = KINDS[kind]()
        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(8, "relu")(inputs))
        model = how.model(inputs, keras.layers.Dense(1, "sigmoid", dtype="float32")(hidden))
        compiled = {"optimizer": "adam", **how.compiled()}
        if BACKEND == "tensorflow":
            compiled.setdefault("jit_compile", False)
        model.compile(loss=how.losses[0], metrics=["accuracy"], **compiled)
        batches, history = Batches(), {}
        for number in range(how.fits):
            if number:
                given = KINDS[kind]()
            if number and how.losses[number:]:
                model.compile(loss=how.losses[number], metrics=["accuracy"], **{**compiled, **how.compiled()})
            fitted = {"epochs": EPOCHS, "verbose": 0, **how.fitted()}
            ours = []
            if log_dir is not None:
                from gpu_util_callback import GpuUtilCallback

                ours = [GpuUtilCallback(log_dir, report=False, trace=how.windows)]
            callbacks = [batches, *ours, *fitted.pop("callbacks", [])]
            done = model.fit(**given, **fitted, callbacks=callbacks)
            for name, values in done.history.items():
                history.setdefault(name, []).extend(map(float, values))
    return left_behind(model, history, batches.logs)


def left_behind(model: Any, history: dict, batches: list[dict]) -> dict[str, Any]:
    """All of a fit that could differ, comparable."""
    optimizer = model.optimizer
    seeds = {id(v) for layer in model._flatten_layers() for v in layer.non_trainable_variables if "seed" in v.path}
    return {
        "loss of each epoch": history.get("loss"),
        "history": history,
        "logs of each batch": batches,
        "weights": [exact(v) for v in model.weights],
        "seed generators": [exact(v) for v in model.non_trainable_variables if id(v) in seeds],
        "iterations": exact(optimizer.iterations),
        "optimizer": [exact(v) for v in optimizer.variables],
        "metrics": [exact(v) for v in model.metrics_variables],
        "side effects": [getattr(model, "python_calls", 0), int(getattr(model, "steps", 0))],
        "random states": random_states(),
    }


def exact(variable: Any) -> str:
    """A variable's bits."""
    return np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes().hex()


def random_states() -> list[str]:
    """The state of each global random generator."""
    import random
    import sys

    states = [str(hash(random.getstate())), np.random.get_state()[1].tobytes().hex()]
    states.append(str(np.random.get_state()[2:]))
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        states.append(str(hash(context.context()._rng.getstate())))
    if "torch" in sys.modules:
        import torch

        states.append(torch.get_rng_state().numpy().tobytes().hex())
    return states
