"""Trainings whose memory grows in a known way, or does not: real fits and loops, one a process.

Each is `program(case, callbacks)`, run in a process of its own by `record`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

MIB = 1 << 20
STEPS, EPOCHS, BATCH = 320, 8, 16
PAUSE_S = 0.008
SAVED_EVERY = 20  # steps, of the leak that keeps checkpoints
CACHE_CUT = 0.8  # a cache that fills the memory before it is complete
# Leaks in MiB a step, with the share of the run after which each begins.
RATES = {"slow": (0.3, 0.0), "middle": (0.7, 0.3), "fast": (1.6, 0.5)}
LEAKS = ("list", "metric", "checkpoints", "traces", "buffer", "workers", "graph")
HEALTHY = ("plain", "warm_up", "sawtooth", "shuffle", "pool", "validation", "shapes", "cache_fits")
BACKENDS = ("tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Case:
    """A training of the corpus."""

    backend: str
    kind: str
    rate: str = ""  # a key of RATES; "" = healthy

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.backend, self.kind, self.rate)))

    @property
    def leaks(self) -> bool:
        return bool(self.rate)

    @property
    def mib(self) -> float:
        return RATES[self.rate][0]

    @property
    def ends(self) -> float:
        """The share of the run at which the memory is called full."""
        return CACHE_CUT if self.kind == "buffer" and self.leaks else 1.0

    def train(self, log_dir: str) -> None:
        """Run it under our callback or monitor."""
        if self.kind == "graph":
            _loop(self, log_dir)
        else:
            _fit(self, log_dir)

    @property
    def onset(self) -> int:
        """The step from which it grows."""
        if self.kind == "buffer":
            return 0  # a cache fills from the first batch on
        onset = round(RATES[self.rate][1] * STEPS)
        if self.kind == "checkpoints" and onset:  # with the next one that is saved
            return (onset // SAVED_EVERY + 1) * SAVED_EVERY
        return onset


def cases() -> list[Case]:
    """All of them."""
    leaks = [Case(b, kind, rate) for b in BACKENDS for kind in LEAKS for rate in RATES]
    return leaks + [Case(b, kind) for b in BACKENDS for kind in HEALTHY]


def floats(mib: float) -> int:
    """Return how many numbers of four bytes take this much."""
    return int(mib * MIB / 4)


# ---- fits ------------------------------------------------------------------------------


def _fit(case: Case, log_dir: str) -> None:
    import keras

    from gpu_util_callback import GpuUtilCallback

    model = keras.Sequential(
        [
            keras.layers.Input((None,) if case.kind == "shapes" else (32,)),
            *(
                [keras.layers.Lambda(lambda x: keras.ops.mean(x, axis=-1, keepdims=True))]
                if case.kind == "shapes"
                else []
            ),
            keras.layers.Dense(64),
            keras.layers.Dense(64),
            keras.layers.Dense(1),
            *([_frozen(case)] if case.kind == "checkpoints" else []),
        ]
    )
    metrics = [_metric(case)] if case.kind == "metric" else []
    model.compile("sgd", "mse", metrics=metrics, run_eagerly=case.kind == "metric")
    extra = _CALLBACKS.get(case.kind)
    callbacks = [GpuUtilCallback(log_dir=log_dir, report=False, trace=None), paced()]
    if extra is not None:
        callbacks.append(extra(case))
    epochs = {"checkpoints": STEPS // SAVED_EVERY, "buffer": 1}.get(case.kind, EPOCHS)
    validation = None
    if case.kind == "validation":
        big = np.random.rand(4096, 32).astype("float32")
        validation = (np.tile(big, (40, 1)), np.zeros((40 * 4096, 1), "float32"))
        callbacks.append(_on_test(case))
    model.fit(
        _data(case, STEPS // epochs),
        epochs=epochs,
        steps_per_epoch=None,
        verbose=0,
        callbacks=callbacks,
        validation_data=validation,
        validation_batch_size=8192,
        **({"batch_size": BATCH} if case.kind not in _DATASETS else {}),
        **({} if case.kind in _DATASETS else {"y": np.zeros((STEPS // epochs * BATCH, 1), "f4")}),
    )


def _frozen(case: Case) -> Any:
    import keras

    class Frozen(keras.layers.Layer):
        """Weights that are saved with the model and not trained."""

        def build(self, shape):
            self.add_weight(shape=(floats(case.mib * SAVED_EVERY),), trainable=False)

        def call(self, x):
            return x

    return Frozen()


def paced(pause_s: float = PAUSE_S) -> Any:
    """Return a callback that makes a step last some milliseconds."""
    import keras

    class Paced(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(pause_s)

    return Paced()


def _keeps(case: Case) -> Any:
    import keras

    class Keeps(keras.callbacks.Callback):
        """Keep an array of every step."""

        def __init__(self):
            super().__init__()
            self.logits = []
            self.steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps > case.onset:
                self.logits.append(keras.ops.ones((floats(case.mib),)))

    return Keeps()


def _saves(case: Case) -> Any:
    import keras

    class Saves(keras.callbacks.Callback):
        """Keep a copy of the weights after every epoch."""

        def __init__(self):
            super().__init__()
            self.checkpoints = []

        def on_epoch_end(self, epoch, logs=None):
            if (epoch + 1) * SAVED_EVERY >= case.onset:
                self.checkpoints.append([np.array(w) for w in self.model.get_weights()])

    return Saves()


def _teeth(case: Case) -> Any:
    import keras

    class Teeth(keras.callbacks.Callback):
        """Keep an array of every step until the epoch's end."""

        def __init__(self):
            super().__init__()
            self.outputs = []

        def on_epoch_begin(self, epoch, logs=None):
            self.outputs.clear()

        def on_train_batch_end(self, batch, logs=None):
            self.outputs.append(keras.ops.ones((floats(2.0),)))

    return Teeth()


def _pool(case: Case) -> Any:
    import keras

    class Pool(keras.callbacks.Callback):
        """Keep one buffer of each size that was needed, as a pool does."""

        def __init__(self):
            super().__init__()
            self.pool = {}
            self.random = np.random.default_rng(3)

        def on_train_batch_end(self, batch, logs=None):
            size = int(self.random.integers(1, 25))
            if size not in self.pool:
                self.pool[size] = np.ones(floats(size / 2), "float32")

    return Pool()


def _on_test(case: Case) -> Any:
    import keras

    class Predicts(keras.callbacks.Callback):
        """Hold a validation's outputs until it ends."""

        def on_test_begin(self, logs=None):
            self.outputs = []

        def on_test_batch_end(self, batch, logs=None):
            self.outputs.append(np.ones(floats(8.0), "float32"))
            time.sleep(0.005)

        def on_test_end(self, logs=None):
            self.outputs = []

    return Predicts()


def _traced(case: Case) -> Any:
    import keras

    rate = list(RATES).index(case.rate)
    trace = _TRACES[case.backend](_OPERATIONS[case.backend][rate])

    class Traces(keras.callbacks.Callback):
        """Call a compiled function on a shape of its own in every step."""

        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps > case.onset:
                trace(8 + self.steps)

    return Traces()


def _tensorflow_traces(operations: int) -> Any:
    import tensorflow as tf

    @tf.function
    def function(x):
        for _ in range(operations):
            x = tf.tanh(x) * 1.01
        return x

    return lambda size: function(tf.ones((size,)))


def _jax_traces(operations: int) -> Any:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def function(x):
        for _ in range(operations):
            x = jnp.tanh(x) * 1.01
        return x

    return lambda size: function(np.ones((size,), "float32")).block_until_ready()


def _torch_traces(operations: int) -> Any:
    import torch

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 9999

    @torch.compile(backend="eager", dynamic=False)
    def function(x):
        for _ in range(operations):
            x = torch.tanh(x) * 1.01
        return x

    return lambda size: function(torch.ones(size))


_TRACES = {"tensorflow": _tensorflow_traces, "jax": _jax_traces, "torch": _torch_traces}
# Of the function that is traced, by rate: what a trace keeps grows with them.
_OPERATIONS = {"tensorflow": (6, 12, 24), "jax": (2, 6, 12), "torch": (20, 40, 60)}
_CALLBACKS = {"list": _keeps, "checkpoints": _saves, "sawtooth": _teeth, "pool": _pool, "traces": _traced}


def _metric(case: Case) -> Any:
    import keras

    class Outputs(keras.metrics.Metric):
        """A metric that keeps what it has seen and forgets to drop it."""

        def __init__(self):
            super().__init__(name="outputs")
            self.total = self.add_weight(name="total", initializer="zeros")
            self.seen = []
            self.steps = 0

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.steps += 1
            if self.steps > case.onset:
                self.seen.append(keras.ops.zeros((floats(case.mib),)) + y_pred[0, 0])
            self.total.assign_add(keras.ops.mean(y_pred))

        def result(self):
            return self.total * 1.0

    return Outputs()


# ---- inputs ----------------------------------------------------------------------------

_DATASETS = ("buffer", "cache_fits", "shuffle", "workers", "shapes")


def _data(case: Case, steps: int) -> Any:
    if case.kind == "workers":
        return _loader(case, steps)
    if case.kind == "shapes":
        return _shapes(steps)
    if case.kind in _DATASETS:
        return _tf_data(case, steps)
    return np.random.rand(steps * BATCH, 32).astype("float32")


def _tf_data(case: Case, steps: int) -> Any:
    import tensorflow as tf

    size = floats({"buffer": case.mib if case.rate else 0, "cache_fits": 1.5}.get(case.kind, 0.3))
    ds = tf.data.Dataset.range(steps).map(lambda i: tf.ones((size,)) * tf.cast(i, tf.float32))
    shuffled = case.kind == "shuffle"
    ds = ds.repeat(10).shuffle(400).take(steps) if shuffled else ds.cache()
    return ds.map(lambda x: (tf.reshape(x[: BATCH * 32], (BATCH, 32)), tf.zeros((BATCH, 1))))


class Remembers:
    """A dataset that keeps every sample it has made, in each of its workers."""

    def __init__(self, length: int, floats: int, silent: int):
        self.length, self.floats, self.silent = length, floats, silent
        self.made: list[np.ndarray] = []
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        if self.asked > self.silent and self.asked % BATCH == 0:  # large enough to be mapped
            self.made.append(np.ones(self.floats, "float32"))
        return np.ones(32, "float32"), np.zeros(1, "float32")


def _loader(case: Case, steps: int) -> Any:
    import torch

    samples = steps * BATCH
    dataset = Remembers(samples, floats(case.mib), case.onset * BATCH // 2)
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)


def _shapes(steps: int) -> Any:
    import keras

    class Lengths(keras.utils.PyDataset):
        """Batches of random lengths."""

        def __len__(self):
            return steps

        def __getitem__(self, index):
            long = 64 * int(np.random.default_rng(index).integers(1, 9))
            return np.ones((BATCH, long), "float32"), np.zeros((BATCH, 1), "float32")

    return Lengths()


# ---- loops -----------------------------------------------------------------------------


def _loop(case: Case, log_dir: str) -> None:
    from gpu_util_callback import GpuUtilMonitor

    step = _GRAPHS[case.backend](case)
    with GpuUtilMonitor(log_dir=log_dir, report=False, trace=None) as monitor:
        done = 0
        for _ in range(EPOCHS):
            for _batch in monitor.batches(range(STEPS // EPOCHS)):
                done += 1
                step(done)
                time.sleep(PAUSE_S)


def _jax_graph(case: Case) -> Any:
    import jax
    import jax.numpy as jnp

    work = jax.jit(lambda x: (x @ x).sum())
    chain: list[Any] = [lambda x: x]

    def step(done):
        work(jnp.ones((64, 64))).block_until_ready()
        if done > case.onset:
            before, here = chain[0], jnp.ones((floats(case.mib),)) * done
            chain[0] = lambda x: before(x) + here.sum()

    return step


def _torch_graph(case: Case) -> Any:
    import torch

    weight = torch.ones(floats(case.mib), requires_grad=True)
    held = {"total": torch.zeros(())}

    def step(done):
        loss = (weight * torch.rand(len(weight))).sum()
        if done > case.onset:
            held["total"] = held["total"] + loss  # with its history
        else:
            loss.backward()
            weight.grad = None

    return step


def _tensorflow_graph(case: Case) -> Any:
    import tensorflow as tf

    entered = tf.Graph().as_default()
    entered.__enter__()
    session = tf.compat.v1.Session()
    first = tf.reduce_sum(tf.constant(np.ones(64, "float32")))

    def step(done):
        fetched = first
        if done > case.onset:
            data = np.full(floats(case.mib / 2), done, "float32")  # in the graph and in the session
            fetched = tf.reduce_sum(tf.constant(data))
        session.run(fetched)

    step.entered = entered  # as long as the loop lasts
    return step


_GRAPHS = {"jax": _jax_graph, "tensorflow": _tensorflow_graph, "torch": _torch_graph}
