"""The digits tutorial: a small CNN on arrays in memory. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "tensorflow", ""


def train(run):
    x = np.random.default_rng(0).random((6400, 28, 28, 1), "float32")
    y = (x.mean((1, 2, 3)) * 1000).astype(int) % 10
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=128, epochs=4, validation_split=0.1, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
