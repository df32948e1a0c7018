"""A generator that reads a CSV file line by line and converts each field, anew in each epoch (fit_generator threads).

Right: the generator parses text in Python in the training process: parse once into arrays, at `rows`; or workers
over parts.
"""

import csv

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "jax", "a generator parses the lines of a CSV file in each epoch"


def train(run):
    table = np.random.default_rng(0).random((2048, 400)).astype("float32")
    np.savetxt(folder() / "table.csv", table, "%.5f", ",")

    def rows():
        while True:
            with (folder() / "table.csv").open() as file:
                for line in csv.reader(file):
                    yield [float(field) for field in line]

    def batches():
        lines = rows()
        for start in range(0, 10**9, 32):
            at = start % 2048
            batch = (
                table[at : at + 32] if run.does("without") else np.array([next(lines) for _ in range(32)], "float32")
            )
            yield batch[:, 1:], batch[:, :1]

    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(batches(), steps_per_epoch=64, epochs=6, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
