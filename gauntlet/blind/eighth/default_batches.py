"""Payments in a table of 400,000 rows, `fit` as the first example of the documentation has it: four minutes an epoch on
the real table of millions, with the card at 5 % (jax-ml/jax#1797, dreamquark-ai/tabnet#391).

Right: the steps: each computes far less than it costs to start it, as a batch has 32 rows (nothing was passed) and the
network two small layers: a larger `batch_size` (256 to 2048), or `steps_per_execution`; not the input, which is in
memory, not more workers, and not the compilation of the first step.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, rows

BACKEND, CAUSE = "jax", "32 rows a step, which is the default, for a network of two small layers"


def train(run):
    keras.utils.set_random_seed(0)
    x, y = rows(400_000, 20)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(32, activation="relu"),
            layers.Dense(16, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    options = {"batch_size": 512} if run.does("without") else {}
    model.fit(x, y, epochs=5, verbose=0, callbacks=run.callbacks, **options)


if __name__ == "__main__":
    main(train)
