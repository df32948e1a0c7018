"""Measures ceilings with stamped delays on the backend that KERAS_BACKEND names; reports what was found and changed.

    python ceilings_program.py INPUT/MODE ...

INPUT: dataset (a PyDataset), tfdata, loader (torch), arrays. MODE: graph, compiled, eager, loop, callback.
"""

import contextlib
import hashlib
import itertools
import random
import signal
import sys
import tempfile
import time

import keras
import numpy as np
from injected import report

from gpu_util_callback import GpuUtilCallback, ceilings, read_recordings
from gpu_util_callback.diagnosis import logdir_report

BACKEND = keras.backend.backend()
INPUT, MODE = "", ""
INPUT_S, STEP_S, SECONDS = 0.02, 0.01, 0.3
BATCHES = 12
keras.utils.set_random_seed(7)
X = np.random.rand(8 * BATCHES, 4).astype("float32")
Y = np.random.rand(8 * BATCHES, 1).astype("float32")


class Batches(keras.utils.PyDataset):
    """Batches that take their time, with a state of their own."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(BATCHES)
        self.rng = np.random.default_rng(1)
        self.served = 0

    def __len__(self):
        return BATCHES

    def __getitem__(self, at):
        time.sleep(INPUT_S)
        self.served += 1
        row = 8 * int(self.order[at])
        noise = self.rng.random((8, 4)).astype("float32") + np.float32(random.random())
        return X[row : row + 8] + noise, Y[row : row + 8]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def make_data():
    keras.utils.set_random_seed(7)  # seeds of tf.data are drawn where it is made
    if INPUT == "dataset":
        return Batches()
    if INPUT == "arrays":
        return X
    if INPUT == "tfdata":
        import tensorflow as tf

        def slow(x):
            time.sleep(INPUT_S)
            return x

        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), seed=5).batch(8)
        return data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), (None, 4)), y))
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, at):
            return X[at], Y[at]

    def together(rows):
        time.sleep(INPUT_S)
        return tuple(torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))

    return torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, collate_fn=together)


class Counting(keras.layers.Layer):
    """A step that takes its time, with state that only a whole copy has."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        if BACKEND == "torch":
            time.sleep(STEP_S)
            return x
        host = _slow_on_host(x)
        return x + 0.0 * host


def _slow_on_host(x):
    def wait(value):
        time.sleep(STEP_S)
        return np.asarray(value)

    if BACKEND == "jax":
        import jax

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(wait, shape, jax.lax.stop_gradient(x))
    import tensorflow as tf

    return tf.stop_gradient(tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape))


def make_model():
    keras.utils.set_random_seed(11)
    compiled = MODE == "compiled"
    # XLA on TensorFlow has no Python functions, which the slow layer needs.
    slow = [] if BACKEND == "tensorflow" and compiled else [Counting()]
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(16),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
            *slow,
            keras.layers.Dense(1),
        ]
    )
    if BACKEND == "jax" and MODE != "eager":
        compiled = True
    model.compile("adam", "mse", metrics=["mae"], jit_compile=compiled, run_eagerly=MODE == "eager")
    return model


def digest(*parts):
    total = hashlib.sha256()
    for part in parts:
        total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def state_of(model, data):
    """Everything that a training could change, as digests."""
    found = {
        "weights": digest(*[np.array(v) for v in map(keras.ops.convert_to_numpy, model.variables)]),
        "optimizer": digest(*[np.array(v) for v in map(keras.ops.convert_to_numpy, model.optimizer.variables)]),
        "python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        "numpy": digest(np.random.get_state()[1]),
        "attributes": sorted(vars(model)),
        "stop_training": getattr(model, "stop_training", None),
    }
    if BACKEND == "torch":
        import torch

        found["torch"] = digest(torch.get_rng_state().numpy())
        found["gradients"] = [p.grad is None for p in model.parameters()]
    if isinstance(data, Batches):
        found["order"] = data.order.tolist()
        found["rng"] = repr(data.rng.bit_generator.state)
        found["served"] = data.served
    return found


def trained(model, data):
    """The losses of the training that follows: its data and random numbers are part of them."""
    y = {"y": Y, "batch_size": 8} if INPUT == "arrays" else {}
    history = model.fit(data, epochs=2, verbose=0, shuffle=INPUT == "arrays", **y)
    return [history.history["loss"], digest(*model.get_weights())]


@contextlib.contextmanager
def interrupted(after_s):
    import _thread
    import threading

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a background job it is ignored
    timer = threading.Timer(after_s, _thread.interrupt_main)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def of_model():
    global INPUT_S, STEP_S
    data, model = make_data(), make_model()
    model.train_on_batch(X[:8], Y[:8])  # optimizer slots and metrics that are not zero
    y = {"y": Y, "batch_size": 8} if INPUT == "arrays" else {}
    before = state_of(model, data)
    raised = False
    try:
        with interrupted(0.8):
            ceilings(model, data, **y, seconds=4, progress=False)
    except KeyboardInterrupt:
        raised = True
    after_it = state_of(model, data)
    result = ceilings(model, data, **y, seconds=SECONDS, progress=False)
    after = state_of(model, data)
    fresh, again = make_data(), make_model()  # in the same order as above: each sets seeds
    again.train_on_batch(X[:8], Y[:8])
    delays, INPUT_S, STEP_S = (INPUT_S, STEP_S), 0.0, 0.0
    random.seed(3)
    keras.utils.set_random_seed(3)
    with_it = trained(model, data)
    keras.utils.set_random_seed(3)
    without_it = trained(again, fresh)
    INPUT_S, STEP_S = delays
    return {
        "result": result.to_dict(),
        "changed": [name for name in before if not before[name] == after_it[name] == after[name]],
        "interrupted": raised,
        "with": with_it,
        "without": without_it,
    }


def of_loop():
    data = list(itertools.repeat(X[:8], 30))

    class Slow:
        def __iter__(self):
            for batch in data:
                time.sleep(INPUT_S)
                yield batch

    step, state = _loop_step()
    before = state()
    result = ceilings(step=step, data=Slow(), seconds=SECONDS, progress=False)
    return {"result": result.to_dict(), "changed": [] if state() == before else ["state"]}


def _loop_step():
    if BACKEND == "torch":
        import torch

        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        optimizer = torch.optim.Adam(module.parameters())

        def step(batch):
            time.sleep(STEP_S)
            optimizer.zero_grad()
            module(torch.from_numpy(batch)).sum().backward()
            optimizer.step()

        def state():
            tensors = [*module.state_dict().values()]
            return (
                digest(*[t.numpy() for t in tensors]),
                repr(optimizer.state_dict()),
                repr(torch.get_rng_state().sum()),
            )

        return step, state
    if BACKEND == "jax":
        import jax

        held = {"w": jax.numpy.ones((4, 8))}
        count = 0

        update = jax.jit(lambda w, x: w - 0.1 * (x @ w).mean(), donate_argnums=0)

        def step(batch):
            nonlocal held, count
            time.sleep(STEP_S)
            held = {"w": update(held["w"], batch)}
            count += 1
            return held

        return step, lambda: (digest(np.array(held["w"])), count)
    import tensorflow as tf

    weight = tf.Variable(tf.ones((4, 8)))
    generator = tf.random.Generator.from_seed(3)

    @tf.function
    def update(batch):
        weight.assign_sub(0.1 * tf.reduce_mean(batch @ weight) + generator.uniform((4, 8)))

    def step(batch):
        time.sleep(STEP_S)
        update(batch)

    return step, lambda: (digest(weight.numpy()), digest(generator.state.numpy()))


def of_callback():
    log_dir = tempfile.mkdtemp(prefix="ceilings-")
    data, model = make_data(), make_model()
    plain_model, plain_data = make_model(), make_data()
    keras.utils.set_random_seed(3)
    callback = GpuUtilCallback(log_dir, ceilings=SECONDS, trace="off")
    model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[callback])
    keras.utils.set_random_seed(3)
    plain_model.fit(plain_data, epochs=1, verbose=0, shuffle=False)
    (kept,) = read_recordings(log_dir)
    (run,) = logdir_report([kept])["runs"]
    return {
        "result": kept.facts["ceilings"],
        "reported": run["ceilings"],
        "with": digest(*model.get_weights()),
        "without": digest(*plain_model.get_weights()),
    }


if __name__ == "__main__":
    for case in sys.argv[1:]:
        INPUT, _, MODE = case.partition("/")
        report(case, **{"loop": of_loop, "callback": of_callback}.get(MODE, of_model)())
