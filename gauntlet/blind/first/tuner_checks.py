"""A keras-tuner search whose trials each check the whole of a large validation set after every epoch.

Right: validation takes most of each trial: a smaller part of it (`validation_steps`), or less often
(`validation_freq`).
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", "validation over twenty times the training data, each epoch"


def train(run):
    import keras_tuner

    rng = np.random.default_rng(0)
    x, y = rng.random((1024, 32), "float32"), rng.random((1024, 1), "float32")
    held = (np.tile(x, (20, 1)), np.tile(y, (20, 1))) if not run.does("without") else (x[:256], y[:256])

    def build(hp):
        width = hp.Int("width", 64, 256, 64)
        model = keras.Sequential([keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials=3, directory=folder(), overwrite=True)
    callbacks = run.callbacks
    tuner.search(x, y, epochs=4, batch_size=32, validation_data=held, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
