"""Loads of a power grid, Keras on JAX; a callback keeps the loss of each batch in a DataFrame and writes it as CSV, so
that a notebook beside it can draw the curve while it trains; the epochs get longer and longer.

Right: the callback `Curve` appends a row to the DataFrame (`pd.concat` copies it) and writes all of it as CSV after
each batch, which takes longer with each: append one line to the file, or write it every 100th batch or after each
epoch; `CSVLogger`; not the steps, not the input (an array in memory), and not a leak of the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE, USES = "jax", "a callback writes a growing DataFrame as CSV after each batch", "callback"


class Curve(keras.callbacks.Callback):
    """Keeps the loss of each batch where a notebook finds it."""

    def __init__(self, path, once):
        super().__init__()
        self.path, self.once, self.rows, self.table = path, once, [], None

    def on_train_batch_end(self, batch, logs=None):
        import pandas as pd

        row = {"batch": batch, **{name: float(value) for name, value in logs.items()}}
        if self.once:
            self.rows.append(row)
        else:
            row = pd.DataFrame([row])
            self.table = row if self.table is None else pd.concat([self.table, row], ignore_index=True)
            self.table.to_csv(self.path, index=False)

    def on_epoch_end(self, epoch, logs=None):
        import pandas as pd

        if self.once:
            pd.DataFrame(self.rows).to_csv(self.path, index=False)


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    loads, next_day = generator.normal(size=(32 * 240, 48, 6)), generator.normal(size=(32 * 240, 24))
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 6)),
            layers.Conv1D(16, 5, activation="relu"),
            layers.Conv1D(16, 5, activation="relu"),
            layers.Flatten(),
            layers.Dense(24),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    own = [Curve(folder() / "curve.csv", run.does("without"))]
    model.fit(loads, next_day, batch_size=32, epochs=8, verbose=2, callbacks=own + run.callbacks)


if __name__ == "__main__":
    main(train)
