"""Prices of houses by cross-validation: few rows, one batch an epoch, many epochs (the textbook's Boston
example).

Right: each epoch is a single short step and a validation: the beginning and ending of epochs takes the time. Several
passes in one epoch (`repeat` the data), and so a validation less often; nothing about the input's source.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras, tf

BACKEND, CAUSE, USES = "tensorflow", "each epoch is one step of 303 rows and a validation, 80 epochs a fold", "run"


def train(run):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(404, 13)).astype("float32")
    y = (x @ rng.normal(size=13) + rng.normal(0, 0.1, 404)).astype("float32")[:, None]

    def build():
        model = keras.Sequential(
            [
                keras.Input((13,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile("rmsprop", "mse", metrics=["mae"])
        return model

    run.start()
    scores = []
    for fold in range(2):
        held = np.arange(404) % 4 == fold
        model = build()
        checked = (x[held], y[held])
        if run.does("without"):
            data = tf.data.Dataset.from_tensors((x[~held], y[~held])).repeat(20)
            history = model.fit(data, validation_data=checked, epochs=4, verbose=0)
        else:
            history = model.fit(x[~held], y[~held], validation_data=checked, epochs=80, batch_size=404, verbose=0)
        scores.append(history.history["val_mae"][-1])
    print("mean error", np.mean(scores))


if __name__ == "__main__":
    main(train)
