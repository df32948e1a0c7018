"""Scans of teeth are contrast-stretched by a pool of two processes; the `PyDataset` opens the pool `with Pool(2)` for
each batch, and two processes are slower than none.

Right: `__getitem__` starts two processes anew for each batch, and their start (a fork of the whole training) takes
longer than their work: keep one pool, or do without, as the work is a few milliseconds of NumPy (or let Keras do it,
`workers=2`); not the contrast itself first of all, not the network, not a larger pool.
"""

import multiprocessing

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "torch", "a pool of two processes is started anew for each batch", "callback"


def stretched(scan):
    """Return a scan with its darkest 2 % black and its brightest white."""
    low, high = np.percentile(scan, (2, 98))
    return np.clip((scan - low) / (high - low), 0, 1)


class Teeth(keras.utils.PyDataset):
    def __init__(self, scans, kinds, pooled):
        super().__init__()
        self.scans, self.kinds, self.pooled = scans, kinds, pooled

    def __len__(self):
        return len(self.scans) // 16

    def __getitem__(self, number):
        rows = slice(16 * number, 16 * number + 16)
        if self.pooled:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                scans = pool.map(stretched, self.scans[rows])
        else:
            scans = map(stretched, self.scans[rows])
        return np.stack(list(scans)), self.kinds[rows]


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    scans, kinds = generator.normal(size=(320, 48, 48, 1)).astype("float32"), generator.integers(0, 4, 320)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 48, 1)),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(Teeth(scans, kinds, not run.does("without")), epochs=3, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
