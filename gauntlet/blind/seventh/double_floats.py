"""Three sizes of a network are tried on series from pandas, which are float64; to silence the error about types the
user called `set_floatx("float64")`, as an answer in a forum had it.

Right: the step itself computes in float64 (`set_floatx("float64")`), which takes at least twice as long as float32
and far longer on a graphics card: cast the data to float32 and leave floatx alone; not the input, which is in memory,
not the number of fits, and not a smaller batch.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "torch", "the model and its data are float64"


def train(run):
    keras.utils.set_random_seed(0)
    keras.config.set_floatx("float32" if run.does("without") else "float64")
    generator = np.random.default_rng(0)
    series = np.cumsum(generator.normal(size=(960, 128, 4)), axis=1)
    load = series[:, -1, 0] + generator.normal(size=960)
    if run.does("without"):
        series, load = series.astype("float32"), load.astype("float32")

    best = None
    for filters in (32, 48, 64):
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((128, 4)),
                layers.Conv1D(filters, 7, activation="relu"),
                layers.Conv1D(filters, 7, activation="relu"),
                layers.Conv1D(filters, 7, activation="relu"),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
        history = model.fit(series, load, batch_size=64, epochs=3, verbose=0, callbacks=run.callbacks)
        loss = history.history["loss"][-1]
        best = min(best or (loss, filters), (loss, filters))
    return best


if __name__ == "__main__":
    main(train)
