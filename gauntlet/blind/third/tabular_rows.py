"""A table's columns go through `map` one row at a time, and are batched only afterwards (google-research#243, TabNet).

Right: the input: `map` is called once a row. `batch` before `map` (the function works on whole batches as it is), or
`cache()` after it; `num_parallel_calls` helps less.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras, tf

BACKEND, CAUSE = "tensorflow", "tf.data maps single rows of a table, and batches afterwards"


def prepare(row, label):
    numbers = [column for name, column in row.items() if name.startswith("number")]
    words = [column for name, column in row.items() if name.startswith("word")]
    parts = [tf.math.log1p(tf.abs(column)) for column in numbers]
    parts += [tf.clip_by_value(column, -1.0, 1.0) for column in numbers]
    numbers = tf.stack(parts, -1)
    words = tf.stack([tf.strings.to_hash_bucket_fast(tf.strings.lower(column), 50) for column in words], -1)
    hot = tf.reduce_sum(tf.one_hot(words, 50), -2)
    return tf.concat([numbers, hot], -1), label


def train(run):
    rng = np.random.default_rng(0)
    table = {f"number{i}": rng.normal(size=12800).astype("float32") for i in range(12)}
    table |= {f"word{i}": np.char.add("City", rng.integers(0, 90, 12800).astype(str)) for i in range(4)}
    rows = tf.data.Dataset.from_tensor_slices((table, rng.integers(0, 2, 12800))).shuffle(2000)
    data = rows.batch(64).map(prepare) if run.does("without") else rows.map(prepare).batch(64)
    model = keras.Sequential(
        [
            keras.Input((74,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, epochs=12, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
