"""Handwriting, with a callback that keeps a copy of all weights after each epoch, for a plot of their way, and each
batch's loss; the memory of the process grows from epoch to epoch. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the copies are 2 MB each and take milliseconds; not a leak
that slows the steps, not the callback, not the input (an array in memory).
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "jax", "", "callback"
NOISE = "a callback keeps all weights after each epoch and each batch's loss, and memory grows"


class History(keras.callbacks.Callback):
    """Keeps where the weights have been."""

    def __init__(self):
        super().__init__()
        self.losses, self.weights = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(self.model.get_weights())


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    letters, kinds = generator.normal(size=(3200, 28, 28, 1)).astype("float32"), generator.integers(0, 26, 3200)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(24, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(26),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    own = [] if run.does("without") else [History()]
    model.fit(letters, kinds, batch_size=64, epochs=3, verbose=2, callbacks=own + run.callbacks)


if __name__ == "__main__":
    main(train)
