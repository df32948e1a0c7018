"""A callback that collects garbage after each batch, as a thread on memory leaks advised, while others use the machine.

Right: still `on_train_batch_end` of the program's callback (`gc.collect`): once an epoch, or not at all; not the busy
neighbours.
"""

import gc

from gauntlet.blind import main
from gauntlet.helpers import keras, rows

BACKEND, CAUSE, USES, BUSY = (
    "torch",
    "a callback calls gc.collect() after each batch; two other processes are busy",
    "callback",
    "plain without",
)


def train(run):
    x, y = rows(960, 64)

    class FreeMemory(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not run.does("without"):
                gc.collect()

    model = keras.Sequential(
        [
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[*run.callbacks, FreeMemory()])


if __name__ == "__main__":
    main(train)
