"""Sentiment of reviews: padded word numbers in memory, an embedding and a GRU, a little validation. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "tensorflow", ""


def train(run):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 5000, (4000, 80))
    y = (x[:, :10].mean(1) > 2500).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Embedding(5000, 64),
            keras.layers.GRU(64),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=6, validation_split=0.1, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
