"""An autoencoder on arrays in memory, Keras on JAX, with a little validation and early stopping. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", ""


def train(run):
    x = np.random.default_rng(0).random((12800, 512), "float32")
    layers = [keras.layers.Dense(width, activation="relu") for width in (768, 64, 768)]
    model = keras.Sequential([*layers, keras.layers.Dense(512)])
    model.compile("adam", "mse")
    callbacks = [keras.callbacks.EarlyStopping(patience=5), *run.callbacks]
    model.fit(x, x, batch_size=128, epochs=6, validation_data=(x[:640], x[:640]), verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
