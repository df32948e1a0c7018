"""A small network fed two rows at a time, as somebody once read that small batches generalise ("my GPU is at 3 %").

Right: the steps are too small, each costs more to start than to compute: a larger `batch_size`, or
`steps_per_execution` (`jit_compile` gains less); nothing about the input's source.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, rows

BACKEND, CAUSE = "tensorflow", "batch_size=2: a step costs more to start than to compute"


def train(run):
    x, y = rows(5000, 30)
    model = keras.Sequential(
        [
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    size = 64 if run.does("without") else 2
    model.fit(x, y, batch_size=size, epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
