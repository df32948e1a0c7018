"""Two learning rates are tried on readings of a machine; `make_csv_dataset` parses all 240 columns of the file, of
which the model gets five (tensorflow/tensorflow#30041, #18952).

Right: the input: `make_csv_dataset` without `select_columns` parses and batches 240 columns in each epoch of each
trial, and the function in `map` drops all but five: name them in `select_columns`, or parse the file once and keep
the columns (in memory, or with `cache` after the map); not the model, and not that there are two fits.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "make_csv_dataset parses 240 columns, of which five are used", "run"


def train(run):
    import pandas as pd

    keras.utils.set_random_seed(0)
    names = [f"sensor_{i}" for i in range(240)]
    used = ["sensor_3", "sensor_40", "sensor_101", "sensor_155", "sensor_200"]
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(6000, 240)).round(4), columns=names)
    table["wear"] = table[used].sum(axis=1).round(3)
    path = str(folder() / "readings.csv")
    table.to_csv(path, index=False)
    run.start()

    def some(columns, wear):
        return tf.stack([columns[name] for name in used], 1), wear

    options = {"select_columns": [*used, "wear"]} if run.does("without") else {}
    for rate in (0.01, 0.001):
        data = tf.data.experimental.make_csv_dataset(
            path, 64, label_name="wear", num_epochs=1, shuffle_buffer_size=1000, **options
        )
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(64, activation="relu"),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(rate), "mse")
        model.fit(data.map(some), epochs=3, verbose=0)


if __name__ == "__main__":
    main(train)
