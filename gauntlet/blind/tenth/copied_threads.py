"""Defects of castings, Keras on PyTorch; the script came from a server of twelve cores, with its
`torch.set_num_threads`, and runs in a container of two, which is at 200 % and slower than with one thread.

Right: `torch.set_num_threads(12)` on a machine with two cores, whose threads get in each other's way: as many as there
are cores (leave the line out); "other processes use the cores" is wrong, as is a faster input (it is in memory), a
smaller network or a larger batch.
"""

import os

from gauntlet.blind import main
from gauntlet.helpers import keras, np, torch

BACKEND, CAUSE, USES = "torch", "torch.set_num_threads(12) on a machine of two cores", "run"


def train(run):
    torch.set_num_threads(len(os.sched_getaffinity(0)) if run.does("without") else 12)
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    castings, defects = generator.random((384, 48, 48, 1), "float32"), generator.integers(0, 2, 384)
    layers = keras.layers
    model = keras.Sequential([keras.Input((48, 48, 1))])
    for width in (8, 16, 24):
        model.add(layers.Conv2D(width, 3, padding="same"))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(64, "relu"))
    model.add(layers.Dense(1, "sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    run.start()
    model.fit(castings, defects, batch_size=16, epochs=3, verbose=2)


if __name__ == "__main__":
    main(train)
