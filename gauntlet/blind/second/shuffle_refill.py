"""A shuffle buffer as large as the set, behind slow reads: each epoch begins with a long pause (tensorflow issues on
shuffle).

Right: each epoch's first step waits while the shuffle buffer fills: a smaller buffer, or shuffle file names, or
`cache()` before it.
"""

import time

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras, tf

BACKEND, CAUSE = "tensorflow", "shuffle(2000) fills its buffer from slow reads at each epoch's start"


def train(run):
    rng = np.random.default_rng(0)
    x = rng.random((2000, 64), "float32")

    def read(i):
        if i % 100 == 0:
            time.sleep(0.06)
        return x[i]

    data = tf.data.Dataset.range(2000)
    data = data.map(lambda i: tf.ensure_shape(tf.numpy_function(read, [i], tf.float32), (64,)))
    data = data.shuffle(64 if run.does("without") else 2000).batch(32).map(lambda x: (x, x[:, :1])).prefetch(2)
    model = keras.Sequential([*[keras.layers.Dense(1600, activation="relu") for _ in range(3)], keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=4, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
