"""Pieces of a weather record from `Dataset.window`, each of which is a data set for each named column, that zip and
flat_map turn into tensors (tensorflow/tensorflow#43703: "super slow when running training").

Right: the input, inside tf.data and not in Python: `window` and `flat_map` build seven data sets of single values for
each piece. Window one tensor of all columns, cut the pieces by their index in one go (NumPy's sliding_window_view,
`timeseries_dataset_from_array`), or cache the result, as it fits; prefetch or num_parallel_calls alone are not enough.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE = "tensorflow", "Dataset.window and flat_map build data sets of single values for each piece"


def train(run):
    keras.utils.set_random_seed(0)
    hours, rng = np.arange(4000, dtype="float32"), np.random.default_rng(0)
    names = ("rain", "wind", "sun", "clouds", "pressure", "humidity", "heat")
    record = {name: np.sin(hours / (i + 3)) + rng.normal(0, 0.1, 4000) for i, name in enumerate(names)}
    record = {name: column.astype("float32") for name, column in record.items()}

    def stacked(columns):
        table = tf.stack([columns[name] for name in names], 1)
        return table[:-1], table[-1, -1]

    if run.does("without"):
        table = np.stack(list(record.values()), 1)
        pieces = np.lib.stride_tricks.sliding_window_view(table, 49, 0).transpose(0, 2, 1)
        data = tf.data.Dataset.from_tensor_slices((pieces[:, :-1], pieces[:, -1, -1]))
    else:
        data = tf.data.Dataset.from_tensor_slices(record).window(49, shift=1, drop_remainder=True)
        data = data.flat_map(lambda columns: tf.data.Dataset.zip({k: c.batch(49) for k, c in columns.items()}))
        data = data.map(stacked)
    data = data.shuffle(1000).batch(64).prefetch(tf.data.AUTOTUNE)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 7)),
            layers.Conv1D(32, 5, activation="relu"),
            layers.Conv1D(32, 5, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(32, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
    model.fit(data, epochs=6, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
