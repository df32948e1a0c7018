"""Loops under GpuUtilMonitor: FRAMEWORK CASE ...

A case is the mode of a loop. "advised" is the eager loop with the decorator that the eager run's
report prints; "looks" trains eagerly and compiled, without the monitor and with it. Reports, for
each case, where it was recorded, and digests of the weights' bytes.
"""

import contextlib
import hashlib
import sys
import tempfile

import numpy as np
from injected import report

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recorder import recorder
from gpu_util_callback.steps import dispatch

dispatch._DENSE_S = 0.01  # as many samples in loops that last a fifth of the usual time

WIDTH, LAYERS, BATCHES = 24, 5, 20
FOLDER = tempfile.mkdtemp(prefix="eager-")
rng = np.random.default_rng(0)
DATA = rng.standard_normal((BATCHES, 16, WIDTH)).astype(np.float32)
START = [0.3 * rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]


def monitored(log_dir):
    if log_dir is None:
        monitor = contextlib.nullcontext()
        return monitor, lambda _, batches: batches
    return GpuUtilMonitor(log_dir, report=False), lambda monitor, batches: monitor.batches(batches)


def advised() -> str:
    """The decorator that the report of the eager loop prints."""
    [recording] = read_recordings(f"{FOLDER}/eager")
    run = run_report(recording)
    [claim] = [one for one in [*run["findings"], *run["spans"]] if one["cause"] == "launch_bound"]
    return claim["advice"]["code"].splitlines()[0].partition("#")[0].strip().removeprefix("@")


def tensorflow_loop(mode, log_dir, steps):
    import tensorflow as tf

    weights = [tf.Variable(one) for one in START]

    @{"eager": lambda f: f, "advised": lambda f: eval(advised(), {"tf": tf})(f), "compiled": tf.function}[mode]
    def train_step(x):
        with tf.GradientTape() as tape:
            h = x
            for w in weights:
                h = tf.nn.tanh(h @ w)
            loss = tf.reduce_mean(h**2)
        for w, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(0.01 * gradient)
        return loss

    batches = tf.data.Dataset.from_tensor_slices(DATA).repeat(steps // BATCHES)
    monitor, of = monitored(log_dir)
    with monitor as entered:
        for x in of(entered, batches):
            train_step(x)
    return [w.numpy() for w in weights]


def jax_loop(mode, log_dir, steps):
    import jax
    import jax.numpy as jnp

    def loss_of(weights, x):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    @{"eager": lambda f: f, "advised": lambda f: eval(advised(), {"jax": jax})(f), "compiled": jax.jit}[mode]
    def update(weights, x):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], loss

    weights = [jnp.asarray(one) for one in START]
    monitor, of = monitored(log_dir)
    with monitor as entered:
        for x in of(entered, list(DATA) * (steps // BATCHES)):
            weights, loss = update(weights, x)
            float(loss)  # as programs do that log it
    return [np.asarray(w) for w in weights]


def jax_keys_loop(mode, log_dir, steps):
    """Compiled steps that take a few ms, and a key split for each, or ("reads") the loss of each as an array."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def update(weights, x, key):
        h = x + jax.random.normal(key, x.shape)
        for _ in range(6):
            h = jnp.tanh(h @ weights)
        return weights + 1e-6 * (h.T @ h), h.mean()

    weights, key, x = jnp.eye(600), jax.random.key(0), jnp.ones((600, 600))
    now = key
    monitor, of = monitored(log_dir)
    with monitor as entered:
        for _ in of(entered, range(steps)):
            if mode == "keys":
                key, now = jax.random.split(key)
            weights, loss = update(weights, x, now)
            if mode == "reads":
                np.asarray(loss)
    return [np.asarray(weights)]


def torch_loop(mode, log_dir, steps):
    import torch

    weights = [torch.from_numpy(one.copy()).requires_grad_() for one in START]
    optimizer = torch.optim.SGD(weights, 0.01)

    def train_step(x):
        optimizer.zero_grad()
        h = x
        for w in weights:
            h = torch.tanh(h @ w)
        (h**2).mean().backward()
        optimizer.step()

    monitor, of = monitored(log_dir)
    with monitor as entered:
        for x in of(entered, [torch.from_numpy(x) for x in DATA] * (steps // BATCHES)):
            train_step(x)
    return [w.detach().numpy() for w in weights]


def tensorflow_input_loop(mode, log_dir, steps):
    """Fetch from an iterator of the loop's own, or ("iter") from a new one in each step."""
    import time

    import tensorflow as tf

    def read(x):
        return tf.numpy_function(lambda v: time.sleep(0.03) or v, [x], tf.float32)

    data = tf.data.Dataset.from_tensor_slices(DATA).map(read).repeat()
    double = tf.function(lambda x: 2 * x)
    monitor, _ = monitored(log_dir)
    batches = iter(data)
    with monitor as entered:
        for _ in range(steps):
            batch = next(batches if mode == "next" else iter(data))
            with entered.step():
                double(batch)
    # TensorFlow may never end an interpreter while an iterator of a Python function exists.
    del batches
    return []


def keras_loop(mode, log_dir, steps):
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(WIDTH)])
    model.compile("sgd", "mse")
    predict = getattr(model, mode.removesuffix("_between"))
    arguments = {"verbose": 0} if mode.startswith("predict") and "batch" not in mode else {}
    predict(DATA[0], **arguments)
    model.train_on_batch(DATA[0], DATA[0])
    monitor, of = monitored(log_dir)
    if mode.endswith("_between"):
        with monitor as entered:
            for x in list(DATA) * (steps // BATCHES):
                wanted = 0.9 * predict(x, **arguments)
                with entered.step():
                    model.train_on_batch(x, wanted)
        return model.get_weights()
    with monitor as entered:
        for x in of(entered, list(DATA) * (steps // BATCHES)):
            model.train_on_batch(x, 0.9 * predict(x, **arguments))
    return model.get_weights()


LOOPS = {  # each lasts about half a second; by framework and case
    ("tensorflow", "eager"): (tensorflow_loop, 400),
    ("tensorflow", "advised"): (tensorflow_loop, 5000),
    ("tensorflow", "next"): (tensorflow_input_loop, 40),
    ("tensorflow", "iter"): (tensorflow_input_loop, 40),
    ("tensorflow", "predict"): (keras_loop, 20),
    ("tensorflow", "predict_on_batch"): (keras_loop, 20),
    ("tensorflow", "predict_between"): (keras_loop, 20),
    ("jax", "eager"): (jax_loop, 120),
    ("jax", "advised"): (jax_loop, 5000),
    ("jax", "keys"): (jax_keys_loop, 100),
    ("jax", "reads"): (jax_keys_loop, 100),
    ("torch", "eager"): (torch_loop, 3000),
}


def digest(weights) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()


if __name__ == "__main__":
    framework, *cases = sys.argv[1:]
    for case in cases:
        recorder._process = type(recorder._process)()  # each loop is a program of its own
        place = f"{FOLDER}/{case}"
        if case == "looks":
            loop, _ = LOOPS[framework, "eager"]
            runs = [loop(m, at, 100) for m in ("eager", "compiled") for at in (None, f"{place} {m}")]
        else:
            loop, steps = LOOPS[framework, case]
            runs = [loop(case, place, steps)]
        report(case, log_dir=place, weights=[digest(one) for one in runs])
