"""A recurrent layer with `unroll=True` over long series, as the documentation says that it is faster
(keras-team/keras#16485).

Right: compiling the unrolled steps takes most of the time, once: `unroll=False` (or shorter series); nothing about the
input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", "unroll=True: a graph of 32 unrolled steps is compiled"


def train(run):
    x = np.random.default_rng(0).normal(size=(2560, 32, 8)).astype("float32")
    y = x[:, -5:].mean((1, 2), keepdims=False)[:, None]
    unroll = not run.does("without")
    model = keras.Sequential([keras.Input((32, 8)), keras.layers.GRU(32, unroll=unroll), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=64, epochs=4, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
