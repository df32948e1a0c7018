"""Reviews cleaned with regular expressions inside `map`, one call at a time, again in each epoch.

Right: the Python call of `map` holds training up: `cache()` after it (the text does not change), or clean before
training.
"""

import re

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras, tf

BACKEND, CAUSE = "tensorflow", "py_function in map cleans each review in Python"


def clean(text):
    text = text.numpy().decode().lower()
    text = re.sub(r"<[^>]+>", " ", text)
    text = re.sub(r"[^a-z ]+", "", text)
    return " ".join(word[:-1] if word.endswith("s") else word for word in text.split())


def train(run):
    rng = np.random.default_rng(0)
    words = [f"word{'s' * (i % 2)}{chr(97 + i % 26)}<br>!" for i in range(900)]
    reviews = [" ".join(rng.choice(words, 150)) for _ in range(1200)]
    labels = np.arange(1200) % 2
    hashing = keras.layers.TextVectorization(2000, output_sequence_length=60)
    hashing.adapt(reviews[:50])
    data = tf.data.Dataset.from_tensor_slices((reviews, labels))
    if run.does("without"):
        cleaned = [clean(tf.constant(review)) for review in reviews]
        data = tf.data.Dataset.from_tensor_slices((cleaned, labels))
    else:
        data = data.map(lambda text, y: (tf.ensure_shape(tf.py_function(clean, [text], tf.string), ()), y))
    data = data.batch(32).map(lambda text, y: (hashing(text), y)).prefetch(tf.data.AUTOTUNE)
    layers = [keras.layers.Embedding(2000, 16), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile("adam", "binary_crossentropy")
    model.fit(data, epochs=15, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
