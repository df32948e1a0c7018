"""Text and time series."""

from __future__ import annotations

from gauntlet.helpers import keras, np, sentences, tf
from gauntlet.registry import INPUT, program
from gauntlet.vision import CACHE, PARALLEL

BATCH_FIRST = r"\.batch\([^)]*\)\.map"


def classifier(vectorize=None):
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(1000, 16), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def vectorizer(texts):
    vectorize = keras.layers.TextVectorization(1000, output_sequence_length=60)
    vectorize.adapt(texts[:500])
    return vectorize


@program(
    "TextVectorization is called once a sentence instead of once a batch",
    "input",
    INPUT,
    cures={"batched": BATCH_FIRST, "cached": CACHE, "parallel": PARALLEL},
)
def text_rows(run):
    texts = sentences(4000)
    vectorize, model = vectorizer(texts), classifier()
    data = tf.data.Dataset.from_tensor_slices((texts, np.arange(4000) % 2))
    calls = tf.data.AUTOTUNE if run.does("parallel") else None
    if run.does("batched"):
        data = data.batch(32).map(lambda t, y: (vectorize(t), y), num_parallel_calls=-1)
    else:
        data = data.map(lambda t, y: (vectorize(t), y), num_parallel_calls=calls)
        data = (data.cache() if run.does("cached") else data).batch(32)
    model.fit(data, epochs=15, verbose=0, callbacks=run.callbacks)
    return model


@program("nothing: batches are vectorized once and kept", "model", None)
def text_ready(run):
    texts = sentences(2000)
    vectorize = vectorizer(texts)
    data = tf.data.Dataset.from_tensor_slices((texts, np.arange(2000) % 2)).batch(32)
    data = data.map(lambda t, y: (vectorize(t), y), num_parallel_calls=tf.data.AUTOTUNE)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(1000, 64),
            layers.Conv1D(64, 5, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(data.cache().prefetch(2), epochs=45, verbose=0, callbacks=run.callbacks)
    return model


def tokenize(text):
    """Hash the words of a sentence, as a tokenizer written in Python does."""
    words = [word.strip(".,") for word in text.decode().lower().split()]
    pairs = words + [f"{a} {b}" for a in words for b in words[:10]]
    return np.array([sum(map(ord, pair)) % 1000 for pair in pairs[:600]], "int64")


@program(
    "a tokenizer in Python, which is the same in every epoch",
    "input",
    INPUT,
    cures={"cached": CACHE},
    harmful=r"num_parallel_calls=\d|threadpool",
)
def python_tokenizer(run):
    def tokens(text, label):
        return tf.ensure_shape(tf.numpy_function(tokenize, [text], tf.int64), (600,)), label

    data = tf.data.Dataset.from_tensor_slices((sentences(1500), np.arange(1500) % 2)).map(tokens)
    if run.does("cached"):
        data = data.cache()
    model = classifier()
    model.fit(data.batch(32).prefetch(2), epochs=12, verbose=0, callbacks=run.callbacks)
    return model


def _windows(count, length):
    series = np.random.default_rng(0).normal(size=(count, 8)).astype("float32")
    return keras.utils.timeseries_dataset_from_array(
        series, series[length:, 0], sequence_length=length, batch_size=64, shuffle=True, seed=1
    )


@program("the model: an LSTM over 60 steps", "model", None, harmful=CACHE)
def series_lstm(run):
    data = _windows(2000, 60)
    model = keras.Sequential([keras.layers.LSTM(48), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(data, epochs=18, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "windows are gathered one by one from a series in memory, for a small model",
    "input",
    INPUT,
    nothing=True,
    cures={"cached": CACHE},
    harmful=CACHE,
)
def series_dense(run):
    data = _windows(6000, 240)
    if run.does("cached"):
        data = data.cache().shuffle(data.cardinality(), seed=1)
    model = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(data, epochs=24, verbose=0, callbacks=run.callbacks)
    return model
