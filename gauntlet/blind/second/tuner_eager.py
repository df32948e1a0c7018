"""A search with keras-tuner whose models were left in debugging mode (`run_eagerly=True`).

Right: eager execution: compile without `run_eagerly`; nothing about the input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", "run_eagerly=True was left in the compiled models"


def train(run):
    import keras_tuner

    rng = np.random.default_rng(0)
    x, y = rng.random((1024, 24), "float32"), rng.random((1024, 1), "float32")

    def build(hp):
        layers = [keras.layers.Dense(32, activation="relu") for _ in range(hp.Int("depth", 2, 5))]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", run_eagerly=not run.does("without"))
        return model

    tuner = keras_tuner.RandomSearch(build, "loss", max_trials=2, directory=folder(), overwrite=True)
    callbacks = run.callbacks
    tuner.search(x, y, epochs=2, batch_size=32, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
