"""Input made by Python functions: numpy_function and generators that wait or compute."""

from __future__ import annotations

import time

from gauntlet.helpers import compute, keras, mlp, np, rows, sleep_ms, tf
from gauntlet.registry import INPUT, program
from gauntlet.vision import CACHE

CALLS = r"num_parallel_calls=(\d+|tf\.data\.AUTOTUNE)"
REWRITE = r"TensorFlow operations|_tf\b"


def _mapped(function, run, count=400, epochs=12, noise=0.0):
    def call(x):
        def python(values):
            function()
            return values + np.float32(noise * np.random.rand())

        return tf.ensure_shape(tf.numpy_function(python, [x], tf.float32), (8,))

    data = tf.data.Dataset.from_tensor_slices(rows(count, 8)[0])
    if run.does("calls"):
        options = tf.data.Options()
        if run.number(0):
            options.threading.private_threadpool_size = run.number(0)
        calls = run.number(tf.data.AUTOTUNE)
        data = data.map(call, num_parallel_calls=calls).with_options(options)
    else:
        data = data.map(call if not run.does("rewritten") else lambda x: x * 1.0)
    if run.does("cached"):
        data = data.cache()
    model = mlp(8)
    data = data.batch(16).map(lambda x: (x, x[:, :1] > 0))
    model.fit(data, epochs=epochs, verbose=0, callbacks=run.callbacks)
    return model


WAITS = "a numpy_function waits, one call at a time"


@program(WAITS, "input", INPUT, cures={"calls": CALLS, "cached": CACHE})
def numpy_sleeping(run):
    return _mapped(lambda: sleep_ms(3), run)


@program(
    f"{WAITS}; others keep both cores busy",
    "input",
    INPUT,
    cures={"calls": CALLS, "cached": CACHE},
    burners=2,
    harmful=REWRITE,
)
def numpy_sleeping_busy(run):
    return _mapped(lambda: sleep_ms(3), run)


@program(f"{WAITS}, and draws random numbers", "input", INPUT, cures={"calls": CALLS}, harmful=CACHE)
def numpy_sleeping_random(run):
    return _mapped(lambda: sleep_ms(3), run, noise=0.1)


@program(
    "a numpy_function computes in Python, under its lock",
    "input",
    INPUT,
    cures={"rewritten": REWRITE, "cached": CACHE},
    harmful=r"num_parallel_calls=\d|threadpool",
)
def numpy_computing(run):
    return _mapped(lambda: compute(60_000), run)


@program(
    "a numpy_function computes in Python; others keep both cores busy",
    "input",
    INPUT,
    cures={"rewritten": REWRITE, "cached": CACHE},
    burners=2,
    harmful=r"num_parallel_calls=\d|threadpool",
)
def numpy_computing_busy(run):
    return _mapped(lambda: compute(60_000), run, epochs=2)


def _interleaved(generator, types, parts):
    """Return a dataset of `parts` generators; each is given its number and their count."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = parts + 1
    return (
        tf.data.Dataset.range(parts)
        .interleave(
            lambda k: tf.data.Dataset.from_generator(generator, output_signature=types, args=(k, parts)),
            cycle_length=parts,
            num_parallel_calls=parts,
        )
        .with_options(options)
    )


def _generated(function, run, epochs=12):
    x, y = rows(400, 8)

    def elements(part=0, parts=1):
        for i in range(part, len(x), parts):
            function()
            yield x[i], y[i]

    types = (tf.TensorSpec((8,), tf.float32), tf.TensorSpec((1,), tf.float32))
    if run.does("parts"):
        data = _interleaved(elements, types, run.number(16))
    else:
        data = tf.data.Dataset.from_generator(elements, output_signature=types)
    if run.does("cached"):
        data = data.cache()
    model = mlp(8)
    model.fit(data.batch(16), epochs=epochs, verbose=0, callbacks=run.callbacks)
    return model


@program("a generator waits for each element", "input", INPUT, cures={"parts": r"cycle_length=(\d+)", "cached": CACHE})
def from_generator_sleeping(run):
    return _generated(lambda: sleep_ms(3), run)


@program("a generator computes in Python", "input", INPUT, cures={"cached": CACHE}, harmful="interleave|threadpool")
def from_generator_computing(run):
    return _generated(lambda: compute(60_000), run)


def _plain_generator(function, run, batches=60, epochs=9):
    x, y = rows(16 * batches, 8)
    model = mlp(8)

    def make(i):
        function()
        return x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]

    def endless():
        while True:
            yield from map(make, range(batches))

    if run.does("parts"):
        types = (tf.TensorSpec((16, 8), tf.float32), tf.TensorSpec((16, 1), tf.float32))
        data = _interleaved(lambda k, n: map(make, range(k, batches, n)), types, run.number(8))
        data = data.repeat()
    elif run.does("threads", "processes"):

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return batches

            def __getitem__(self, i):
                return make(i)

        data = Batches(workers=run.number(2), use_multiprocessing=run.does("processes"))
    else:
        data = endless()
    model.fit(data, steps_per_epoch=batches, epochs=epochs, shuffle=False, verbose=0, callbacks=run.callbacks)
    return model


PROCESSES = r"workers=(\d+), use_multiprocessing=True"
THREADS = r"workers=(\d+)\)"
REBUILT = {"processes": PROCESSES, "threads": THREADS, "parts": r"cycle_length=(\d+)"}


@program("a generator given to fit waits for each batch", "input", INPUT, cures=REBUILT)
def generator_sleeping(run):
    return _plain_generator(lambda: sleep_ms(25), run)


@program("a generator given to fit waits for each batch", "input", INPUT, backend="jax", cures=REBUILT)
def generator_sleeping_jax(run):
    return _plain_generator(lambda: sleep_ms(25), run)


@program("a generator given to fit computes in Python", "input", INPUT, cures=REBUILT)
def generator_computing(run):
    return _plain_generator(lambda: compute(500_000), run)


@program(
    "the shuffle buffer is filled again in every epoch, from a source that waits",
    "input",
    INPUT,
    cures={"repeated": r"\.repeat\(", "calls": CALLS, "cached": CACHE},
)
def shuffle_refill(run):
    def read(x):
        def waits(values):
            sleep_ms(1.5)
            return values

        return tf.ensure_shape(tf.numpy_function(waits, [x], tf.float32), (8,))

    data = tf.data.Dataset.from_tensor_slices(rows(600, 8)[0])
    if run.does("calls"):
        options = tf.data.Options()
        if run.number(0):
            options.threading.private_threadpool_size = run.number(0)
        data = data.map(read, num_parallel_calls=run.number(tf.data.AUTOTUNE)).with_options(options)
    else:
        data = data.map(read)
    data = (data.cache() if run.does("cached") else data).shuffle(500, seed=1)
    data = (data.repeat() if run.does("repeated") else data).batch(16)
    data = data.map(lambda x: (x, x[:, :1] > 0)).prefetch(tf.data.AUTOTUNE)
    model = mlp(8, units=1024, layers=4)
    model.fit(data, steps_per_epoch=37 if run.does("repeated") else None, epochs=15, verbose=0, callbacks=run.callbacks)
    return model


@program("one batch of 150 takes four seconds to arrive", "any", r"input_bound|wait")
def one_long_fetch(run):
    x, y = rows(16 * 150, 8)

    def batches():
        for i in range(150):
            if i == 80:
                time.sleep(4)  # a network file system that hangs
            yield x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]

    model = mlp(8, units=1024, layers=5)
    model.fit(batches(), verbose=0, callbacks=run.callbacks)
    return model
