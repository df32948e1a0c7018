"""A sound tabular fit on a machine whose cores others use (a shared server's "training became three times slower").

Right: other processes use the cores; nothing in the program, above all not its input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, BUSY = "jax", "two busy processes of others", "plain"


def train(run):
    rng = np.random.default_rng(0)
    x, y = rng.random((12800, 256), "float32"), rng.random((12800, 1), "float32")
    layers = [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(512, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=128, epochs=7, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
