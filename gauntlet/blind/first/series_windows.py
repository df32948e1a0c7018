"""Sensor series cut into windows one by one through `from_generator` (a forum's "LSTM trains slower on GPU").

Right: windows are made one at a time in Python: whole batches at once, TensorFlow operations, or `cache()` of the
windows.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras, tf

BACKEND, CAUSE = "tensorflow", "from_generator yields single windows from Python"


def train(run):
    series = np.random.default_rng(0).standard_normal((4032, 6)).astype("float32")

    def windows():
        for start in range(4000):
            piece = series[start : start + 32]
            yield (piece - piece.mean(0)) / (piece.std(0) + 1e-6), series[start + 31, :1]

    if run.does("without"):
        x, y = (np.array(part) for part in zip(*windows(), strict=True))
        data = tf.data.Dataset.from_tensor_slices((x, y))
    else:
        types = (tf.TensorSpec((32, 6)), tf.TensorSpec((1,)))
        data = tf.data.Dataset.from_generator(windows, output_signature=types)
    model = keras.Sequential(
        [keras.layers.Conv1D(16, 5, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    model.fit(data.batch(64).prefetch(2), epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
