"""A callback that computes F1 after each epoch by calling `predict` for each held-out sample (keras-team/keras#3071).

Right: `on_epoch_end` of the program's callback holds training up, by one `predict` a sample: one `predict` for the
whole array, `validation_data=` with a metric, or only every few epochs.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, USES = "jax", "a callback calls predict for each held-out sample after each epoch", "run"


def train(run):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, 40)).astype("float32")
    y = (x[:, :3].sum(1) > 0).astype("int32")
    held, truth = x[:1500], y[:1500]

    class F1(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if run.does("without"):
                found = self.model.predict(held, verbose=0).argmax(1)
            else:
                found = np.array([self.model.predict(one[None], verbose=0)[0].argmax() for one in held])
            hits = np.sum((found == 1) & (truth == 1))
            print("f1", 2 * hits / max(1, found.sum() + truth.sum()))

    model = keras.Sequential(
        [
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    run.start()
    model.fit(x, y, batch_size=32, epochs=10, verbose=0, callbacks=[F1()])


if __name__ == "__main__":
    main(train)
