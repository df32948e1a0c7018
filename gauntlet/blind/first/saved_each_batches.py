"""ModelCheckpoint with `save_freq=20` on a model with a large embedding (a forum's "GPU idle every few seconds").

Right: checkpoints hold training up: save each epoch, or the weights alone.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "tensorflow", "the whole model is saved every 20 batches"


def train(run):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 150000, (6400, 12)), rng.random((6400, 1), "float32")
    layers = [keras.layers.Embedding(150000, 64), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    callbacks = list(run.callbacks)
    if not run.does("without"):
        callbacks.append(keras.callbacks.ModelCheckpoint(str(folder() / "model.keras"), save_freq=20))
    model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
