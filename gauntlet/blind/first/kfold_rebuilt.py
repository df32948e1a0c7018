"""Cross-validation that builds and compiles a model anew in each of many folds (keras-team/keras-tuner#338).

Right: compiling, once per fold: build one model and reset its weights; nothing about the input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", "each of 3 folds compiles a new model"


def build():
    model = keras.Sequential(
        [keras.layers.Embedding(200, 32), keras.layers.LSTM(48), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    model.build((None, 20))
    model.compile("adam", "mse")
    return model


def train(run):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 200, (800, 20)), rng.random((800, 1), "float32")
    one, callbacks = build(), run.callbacks
    weights = one.get_weights()
    for fold in range(3):
        held = np.arange(800) % 3 == fold
        model = one if run.does("without") else build()
        model.set_weights(weights)
        model.fit(x[~held], y[~held], epochs=3, validation_data=(x[held], y[held]), verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
