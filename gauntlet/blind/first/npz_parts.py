"""Data too large for memory, so each epoch loads its compressed parts and fits each once (fit in a loop over files).

Right: the time goes between the fits, into loading: one fit over a generator or dataset that loads ahead; no
advice on the input of a fit.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", "np.load decompresses a file before each short fit"


def train(run):
    rng = np.random.default_rng(0)
    for part in range(6):
        x = rng.integers(0, 99, (6000, 1000)).astype("float32")
        np.savez_compressed(folder() / f"part{part}.npz", x=x, y=x[:, :1] > 50)
    kept = {}

    def load(part):
        if part not in kept or not run.does("without"):
            with np.load(folder() / f"part{part}.npz") as file:
                kept[part] = file["x"], file["y"]
        return kept[part]

    if run.does("without"):
        for part in range(6):
            load(part)
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    callbacks = run.callbacks
    for _ in range(6):
        for part in range(6):
            x, y = load(part)
            model.fit(x, y, batch_size=256, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
