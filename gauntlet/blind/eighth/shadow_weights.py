"""Films are recommended by two large embeddings; since a callback from a gist averages the weights, for a better
result, the same training takes twice as long (keras-team/keras#3696).

Right: between the steps: `on_batch_end` of the callback `Average` reads all 4.5 million weights and averages them in
NumPy after each batch: let the optimizer do it (`use_ema=True`, or `SwapEMAWeights`), or average every n-th batch or
once an epoch; not the input, which is in memory, and not the step alone.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "torch", "a callback averages 4.5 million weights in NumPy after each batch"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    users, films = generator.integers(0, 40_000, 38_400), generator.integers(0, 30_000, 38_400)
    ratings = generator.uniform(1, 5, 38_400).astype("float32")

    class Average(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.averages = [weight.copy() for weight in self.model.get_weights()]

        def on_batch_end(self, batch, logs=None):
            for i, weight in enumerate(self.model.get_weights()):
                self.averages[i] = 0.999 * self.averages[i] + (1 - 0.999) * weight

    layers = keras.layers
    user, film = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    both = layers.Concatenate()([layers.Embedding(40_000, 64)(user), layers.Embedding(30_000, 64)(film)])
    hidden = layers.Dense(64, activation="relu")(both)
    model = keras.Model([user, film], layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    average = [] if run.does("without") else [Average()]
    model.fit([users, films], ratings, batch_size=128, epochs=2, verbose=0, callbacks=average + run.callbacks)


if __name__ == "__main__":
    main(train)
