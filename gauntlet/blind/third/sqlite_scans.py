"""Samples in an SQLite file, each asked for by its name, which has no index (a forum's "DataLoader on a database").

Right: the queries in `__getitem__`, in the training process: an index on `name` (or a primary key), one query for a
batch, or the table read once into arrays; `workers=` alone needs a connection for each thread, and hides a part.
"""

import sqlite3

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE = "torch", "a PyDataset queries SQLite once a sample, by a column without an index"


def train(run):
    rng = np.random.default_rng(0)
    database = sqlite3.connect(folder() / "samples.db")
    database.execute("CREATE TABLE samples (name TEXT, features BLOB, label INTEGER)")
    rows = [(f"patient-{i:05}", rng.random(64, "float32").tobytes(), i % 2) for i in range(6000)]
    database.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
    if run.does("without"):
        database.execute("CREATE INDEX by_name ON samples (name)")
    database.commit()
    names = [name for name, *_ in rows[:3200]]
    rng.shuffle(names)

    class Patients(keras.utils.PyDataset):
        def __len__(self):
            return len(names) // 32

        def __getitem__(self, index):
            features, labels = [], []
            for name in names[32 * index : 32 * index + 32]:
                query = "SELECT features, label FROM samples WHERE name = ?"
                blob, label = database.execute(query, (name,)).fetchone()
                features.append(np.frombuffer(blob, "float32"))
                labels.append(label)
            return np.stack(features), np.array(labels)

    model = keras.Sequential(
        [
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(Patients(), epochs=10, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
