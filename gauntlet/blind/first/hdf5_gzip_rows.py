"""Shuffled single rows of a gzipped HDF5 file whose chunks hold 256 rows (a forum's "h5py is slow with
shuffle=True").

Right: each sample decompresses a chunk: batches of neighbours, smaller or uncompressed chunks, or the data in
memory.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "jax", "each sample decompresses a chunk of 256 rows"


def train(run):
    import h5py

    path, rng = folder() / "rows.h5", np.random.default_rng(0)
    options = {} if run.does("without") else {"chunks": (256, 1024), "compression": "gzip"}
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rng.integers(0, 50, (2048, 1024)).astype("float32"), **options)
        file["y"] = np.arange(2048) % 2
    file = h5py.File(path)

    class Shuffled(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.order = rng.permutation(2048)

        def __len__(self):
            return 64

        def __getitem__(self, index):
            picked = self.order[32 * index : 32 * index + 32]
            return np.stack([file["x"][i] for i in picked]), np.array([file["y"][i] for i in picked])

        def on_epoch_end(self):
            rng.shuffle(self.order)

    model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    model.fit(Shuffled(), epochs=2, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
