"""Batches drawn from an HDF5 file by sorted lists of scattered row numbers (forum: "h5py fancy indexing is very
slow").

Right: the reads by scattered rows take the time: read runs of rows and shuffle in memory, or load the file, at
`file["x"][rows]`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", "h5py reads lists of scattered rows, column chunks"


def train(run):
    import h5py

    rng = np.random.default_rng(0)
    values = rng.random((8192, 512), "float32")
    with h5py.File(folder() / "data.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(16, 64))
    file = h5py.File(folder() / "data.h5")

    def batches():
        while True:
            order = rng.permutation(8192)
            for start in range(0, 8192, 128):
                rows = np.sort(order[start : start + 128])
                x = values[rows] if run.does("without") else file["x"][rows]
                yield x, x[:, :1]

    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(batches(), steps_per_epoch=64, epochs=3, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
