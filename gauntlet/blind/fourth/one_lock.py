"""A sequence with four workers, all of which take the same lock for the whole of their reading (after the
"threadsafe_generator" snippet that everybody copies).

Right: the input waits for its store, and the four workers for one another, at the lock in `__getitem__`: hold the lock
only around what it protects, or a connection a thread; more workers alone gain nothing.
"""

import threading
import time

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, USES = "torch", "a lock around the whole of __getitem__ lets one of four workers read at a time", "run"


class Store:
    """Rows of measurements behind a network."""

    def __init__(self, count):
        self.values = np.random.default_rng(0).normal(size=(count, 48)).astype("float32")

    def read(self, start, stop):
        time.sleep(0.02)  # the answer takes as long as it takes, whoever else asks
        return self.values[start:stop].copy()


def train(run):
    class Measurements(keras.utils.PyDataset):
        def __init__(self, store, batch_size, **options):
            super().__init__(**options)
            self.store, self.batch_size, self.lock, self.reads = store, batch_size, threading.Lock(), 0

        def __len__(self):
            return len(self.store.values) // self.batch_size

        def read(self, index):
            values = self.store.read(index * self.batch_size, (index + 1) * self.batch_size)
            return values[:, :47], values[:, 47:]

        def __getitem__(self, index):
            if run.does("without"):
                with self.lock:
                    self.reads += 1
                return self.read(index)
            with self.lock:
                self.reads += 1
                return self.read(index)

    model = keras.Sequential(
        [keras.layers.Dense(96, activation="relu"), keras.layers.Dense(96, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    data = Measurements(Store(3840), 64, workers=4, max_queue_size=16)
    run.start()
    model.fit(data, epochs=5, verbose=0)


if __name__ == "__main__":
    main(train)
