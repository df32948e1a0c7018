"""A search with keras-tuner over two sizes of a network on tables in memory, with a small validation. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", ""
NOISE = "a validation on 800 rows after each epoch"


def train(run):
    import keras_tuner

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 64)).astype("float32")
    y = (x[:, :8].sum(1) > 0).astype("float32")[:, None]

    def build(hp):
        width = hp.Choice("width", [512, 768])
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1, activation="sigmoid")])
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    objective = "accuracy" if run.does("without") else "val_accuracy"
    goal = keras_tuner.Objective(objective, "max")
    tuner = keras_tuner.GridSearch(build, goal, max_trials=2, directory=folder(), overwrite=True)
    checked = None if run.does("without") else (x[7200:], y[7200:])
    callbacks = run.callbacks
    tuner.search(x[:7200], y[:7200], validation_data=checked, epochs=6, batch_size=128, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
