"""A detector whose generator draws a Gaussian map for each joint, pixel by pixel (yhenon/keras-frcnn#226).

Right: the generator computes in Python in the training process; worker processes (a PyDataset), or vectorised
code, at `gaussian`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "tensorflow", "a generator draws target maps in Python"


def gaussian(size, cx, cy):
    heat = np.zeros((size, size), "float32")
    for row in range(size):
        for column in range(size):
            heat[row, column] = np.exp(-((row - cy) ** 2 + (column - cx) ** 2) / 8)
    return heat


def train(run):
    rng = np.random.default_rng(0)
    photos = rng.random((64, 32, 32, 3), "float32")
    joints = rng.integers(0, 16, (64, 2, 2))
    ready = np.stack([[gaussian(16, *joint) for joint in two] for two in joints]).transpose(0, 2, 3, 1)

    def batches():
        while True:
            picked = rng.integers(0, 64, 16)
            if run.does("without"):
                yield photos[picked], ready[picked]
            else:
                maps = [[gaussian(16, *joint) for joint in joints[i]] for i in picked]
                yield photos[picked], np.array(maps).transpose(0, 2, 3, 1)

    layers = [keras.layers.Conv2D(16, 3, 2, "same", activation="relu"), keras.layers.Conv2D(2, 3, 1, "same")]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    model.fit(batches(), steps_per_epoch=60, epochs=14, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
