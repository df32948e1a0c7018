"""Programs of `test_flops.py`, each in a process of its backend; prints one object of JSON.

flops_program.py fits        FLOPs per sample of small models, as a fit recorded them
flops_program.py published   FLOPs per image of Keras Applications, forward and training
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

BATCH, WIDTH, UNITS = 8, 32, 64
BACKEND = keras.backend.backend()

if BACKEND == "jax":  # the work is counted before XLA compiles the step
    import jax

    jax.config.update("jax_disable_most_optimizations", True)


# ---- fits ------------------------------------------------------------------------------------


def work_of(model: Any, x: Any, y: Any = None, **arguments: Any) -> Any:
    """FLOPs per sample of a recorded fit, or why there are none; without `y`, `x` is a dataset."""
    from gpu_util_callback import GpuUtilCallback, read_recordings
    from gpu_util_callback.recorder import model_work

    model_work.gpu_used = lambda gpus: True  # the work is counted where there is a peak
    log_dir = tempfile.mkdtemp()
    callback = GpuUtilCallback(log_dir, trace="off", report=False, **arguments)
    size = BATCH if y is not None else None
    model.fit(x, y, batch_size=size, epochs=2, verbose=0, callbacks=[callback])
    (recording,) = read_recordings(log_dir)
    work = recording.facts.get("work")
    if work is None:
        missing = recording.facts["unavailable"]
        return next(one["reason"] for one in missing if one["source"] == "model FLOPs")
    return work["flops_per_sample"]


def data(last: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3 * BATCH + 3, WIDTH)).astype(np.float32)  # a smaller last batch
    return x, generator.normal(size=(len(x), last)).astype(np.float32)


def dense(inside: Any = None) -> keras.Model:
    parts = [layers.Dense(UNITS, activation="relu"), *([inside] if inside else []), layers.Dense(1)]
    return keras.Sequential([keras.Input((WIDTH,)), *parts])


def compiled(model: keras.Model, optimizer: Any = "sgd", **arguments: Any) -> keras.Model:
    model.compile(optimizer, "mse", **arguments)
    return model


def mixed() -> Any:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        return work_of(compiled(dense()), *data())
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(UNITS, activation="relu"), layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


def convolution(feed: Callable[[Any, Any], tuple] = lambda x, y: (x, y)) -> Any:
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, strides=2, padding="same"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.Conv2D(16, 3),  # no padding
            layers.Conv2DTranspose(4, 2, strides=2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    x = np.random.default_rng(0).normal(size=(2 * BATCH, 12, 12, 3)).astype(np.float32)
    return work_of(compiled(model), *feed(x, np.zeros((2 * BATCH, 1), np.float32)))


def sizes_left_open() -> Any:
    """Pictures whose sizes the dataset does not know, as `tf.io.decode_png` leaves them."""
    import tensorflow as tf

    def feed(x, y):
        kinds = tf.TensorSpec((None, None, 3)), tf.TensorSpec((1,))
        dataset = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=kinds)
        return (dataset.batch(BATCH, drop_remainder=True),)

    return convolution(feed)


class Twice(keras.Model):
    """A training step of its own: it looks at the batch once more, without a gradient."""

    def train_step(self, *args):
        if BACKEND == "jax":
            state, batch = args
            self.stateless_call(state[0], state[1], 2.0 * batch[0])
            logs, state = super().train_step(state, batch)
            seen, _ = self.stateless_call(state[0], state[1], 2.0 * batch[0])
            return {**logs, "seen": keras.ops.mean(seen)}, state
        (batch,) = args
        logs = super().train_step(batch)
        if BACKEND == "torch":
            import torch

            with torch.no_grad():
                return {**logs, "seen": keras.ops.mean(self(2.0 * torch.as_tensor(batch[0])))}
        return {**logs, "seen": keras.ops.mean(self(2.0 * batch[0]))}


def own_step() -> Any:
    inputs = keras.Input((WIDTH,))
    hidden = layers.Dense(UNITS, activation="relu")(inputs)
    return work_of(compiled(Twice(inputs, layers.Dense(1)(hidden))), *data())


class Noted(keras.Model):
    """Notes how often Python runs its step, to trace it or to train."""

    runs = 0

    def train_step(self, *args):
        type(self).runs += 1
        return super().train_step(*args)


def untouched() -> Any:
    """Runs of a step's Python without and with us; if the function is its own later."""
    from gpu_util_callback import GpuUtilCallback, read_recordings
    from gpu_util_callback.backends.functions import unwrapped

    x, y = data()
    runs, own, log_dir = [], [], tempfile.mkdtemp()
    for recorded in (False, True):
        inputs = keras.Input((WIDTH,))
        model = compiled(Noted(inputs, layers.Dense(1)(inputs)))
        Noted.runs = 0
        model.make_train_function()
        before = model.train_function
        look = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, model=model, before=before: own.append(
                (batch, unwrapped(model.train_function) is before)
            )
        )
        ours = [GpuUtilCallback(log_dir, trace="off", report=False)] if recorded else []
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[look, *ours])
        own.append((0, model.train_function is before))
        runs.append(Noted.runs)
    (recording,) = read_recordings(log_dir)
    assert "work" in recording.facts
    return [*runs, all(is_own for batch, is_own in own if batch != 0), own[-1][1]]


class Foreign(layers.Layer):
    """An operation that no framework knows the work of."""

    def call(self, x):
        if BACKEND == "tensorflow":
            import tensorflow as tf

            return tf.ensure_shape(tf.py_function(lambda one: one, [x], x.dtype), x.shape)
        if BACKEND == "jax":
            import jax

            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            same = jax.custom_jvp(lambda one: jax.pure_callback(lambda v: v, shape, one))
            same.defjvp(lambda primals, tangents: (same(*primals), tangents[0]))
            return same(x)
        return _foreign_operation()(x)

    def compute_output_shape(self, shape):
        return shape


def _foreign_operation() -> Any:
    import torch

    if not hasattr(torch.ops, "somebody") or not hasattr(torch.ops.somebody, "same"):
        same = torch.library.custom_op(
            "somebody::same", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        same.register_fake(torch.empty_like)
        same.register_autograd(lambda context, gradient: gradient)
    return torch.ops.somebody.same


def foreign() -> Any:
    return work_of(compiled(dense(Foreign()), jit_compile=BACKEND == "jax"), *data())


def remat() -> Any:
    """Nothing is counted twice that is computed twice."""
    with keras.RematScope(mode="full"):
        model = dense()
    return work_of(compiled(model), *data())


TOKENS, DIM, HEADS, LAYERS, WORDS = 24, 32, 4, 2, 50


def transformer() -> Any:
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(WORDS, DIM)(inputs)
    for _ in range(LAYERS):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, DIM // HEADS)(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(4 * DIM, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(DIM)(hidden)
    model = keras.Model(inputs, layers.Dense(WORDS)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    words = np.random.default_rng(0).integers(0, WORDS, (2 * BATCH, TOKENS))
    return work_of(model, words.astype(np.int32), words)


def fit_of(optimizer: Any = "sgd", flops_per_sample: float | None = None, **compiling: Any) -> Callable[[], Any]:
    """Return a fit of a dense model that is compiled so."""
    given = {} if flops_per_sample is None else {"flops_per_sample": flops_per_sample}
    return lambda: work_of(compiled(dense(), optimizer, **compiling), *data(), **given)


FITS: dict[str, Callable[[], Any]] = {
    "jit": fit_of(jit_compile=True),
    "several_steps": fit_of(steps_per_execution=2),
    "accumulation": fit_of(keras.optimizers.SGD(gradient_accumulation_steps=2)),
    "given": fit_of(flops_per_sample=123.0),
    "eager": fit_of(run_eagerly=True),
    "subclassed": lambda: work_of(compiled(Subclassed()), *data()),
    **{
        one.__name__: one
        for one in (mixed, convolution, sizes_left_open, own_step, untouched, foreign, remat, transformer)
    },
}


def fits() -> dict[str, Any]:
    left_out = {
        "torch": ("several_steps", "jit", "sizes_left_open", "given"),
        "tensorflow": ("remat",),
        "jax": ("sizes_left_open", "given"),
    }[BACKEND]
    model = compiled(dense())
    first, second = work_of(model, *data()), work_of(model, *data())
    return {"plain": first, "again": second} | {name: fit() for name, fit in FITS.items() if name not in left_out}


# ---- published figures -----------------------------------------------------------------------


def published(names: list[str]) -> dict[str, Any]:
    # No figure depends on the weights, and JAX would compile how each shape of them is drawn.
    for initializer in (keras.initializers.GlorotUniform, keras.initializers.Zeros, keras.initializers.Ones):
        initializer.__call__ = lambda self, shape, dtype=None, **_: np.zeros(shape, dtype)
    return {name: _counted(_model(name)) for name in names}


def _model(name: str) -> keras.Model:
    return resnet() if name == "torchvision's" else getattr(keras.applications, name)(weights=None)


def resnet() -> keras.Model:
    """ResNet-50 as torchvision has it: blocks stride in their middle, Keras' in the first layer."""
    inputs = keras.Input((224, 224, 3))
    x = layers.Conv2D(64, 7, strides=2, padding="same")(inputs)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stack, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stack and not block else 1
            aside = x if block else layers.Conv2D(4 * width, 1, strides=stride)(x)
            x = layers.Conv2D(width, 1, activation="relu")(x)
            x = layers.Conv2D(width, 3, stride, padding="same", activation="relu")(x)
            x = layers.ReLU()(layers.Conv2D(4 * width, 1)(x) + aside)
    outputs = layers.Dense(1000, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def _counted(model: keras.Model) -> tuple[float, float]:
    """GMAC per image: forward, training."""
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=BACKEND == "jax")
    forward, training = {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}[BACKEND](model)
    return tuple(sum(work.per_sample().values()) / 2e9 for work in (forward, training))


def _by_tensorflow(model: keras.Model) -> tuple[Any, Any]:
    import tensorflow as tf

    from gpu_util_callback.backends.tensorflow.flops import _functions_in, count

    images = tf.TensorSpec((None, *model.input_shape[1:]))
    forward = tf.function(lambda x: model(x, training=False)).get_concrete_function(images)
    model.make_train_function()
    step = next(one for one in _functions_in(model.train_function, set()) if one.__name__ == "one_step_on_data")
    labels = tf.TensorSpec((None,), tf.int32)
    return count(forward, 4), count(step.get_concrete_function((images, labels)), 4)


def _by_jax(model: keras.Model) -> tuple[Any, Any]:
    import jax

    from gpu_util_callback.backends.jax.flops import StepShapes, count, jitted_in

    def forward(weights, x):
        return model.stateless_call(*weights, x, training=False)[0]

    images = jax.ShapeDtypeStruct((2, *model.input_shape[1:]), "float32")
    labels = jax.ShapeDtypeStruct((2,), "int32")
    weights = tuple(
        [one.value for one in variables] for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    model.make_train_function()
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=(np.zeros(images.shape, np.float32), np.zeros(2, np.int32)))
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    found = []
    for function, given in (
        (jax.jit(forward), (weights, images)),
        (jitted_in(model.train_function), (state, (images, labels))),
    ):
        shapes = StepShapes(*given)
        function.trace(*shapes.given)
        found.append(count(function, shapes))
    return found[0], found[1]


def _by_torch(model: keras.Model) -> tuple[Any, Any]:
    import torch

    from gpu_util_callback.backends.torch.flops import counted

    images = torch.zeros((1, *model.input_shape[1:]))
    with torch.no_grad():
        _, forward = counted(lambda x: model(x, training=False), (images,))
    model.make_train_function()
    model._symbolic_build(data_batch=(images, torch.zeros(1, dtype=torch.int32)))
    batch = [(images, torch.zeros(1, dtype=torch.int32))]
    _, training = counted(model.train_function, (batch,))
    return forward, training


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    what, *names = sys.argv[1:]
    print(json.dumps(fits() if what == "fits" else published(names)))
