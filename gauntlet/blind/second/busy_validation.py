"""Each short epoch is followed by validation on far more data, on a machine that others keep busy.

Right: still validation: `validation_steps`, `validation_freq` or a larger `validation_batch_size`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, BUSY = (
    "torch",
    "validation on eight times the training data; two other processes are busy",
    "plain without",
)


def train(run):
    rng = np.random.default_rng(0)
    x, y = rng.random((960, 64), "float32"), rng.random((960, 1), "float32")
    held = (np.tile(x, (8, 1)), np.tile(y, (8, 1)))
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    checks = {} if run.does("without") else {"validation_data": held}
    model.fit(x, y, batch_size=32, epochs=8, verbose=0, callbacks=run.callbacks, **checks)


if __name__ == "__main__":
    main(train)
