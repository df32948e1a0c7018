"""Each step draws its rows from a million by `np.random.choice(..., replace=False)`, which shuffles all of them to
take 128 (a `train_on_batch` loop for pairs; numpy issues on `choice`).

Right: drawing the batch, at `np.random.choice`, takes the time: one permutation an epoch, or
`Generator.integers`/`Generator.choice(shuffle=False)`; not the training step.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, USES = "tensorflow", "np.random.choice without replacement from a million rows in each step", "monitor"
COUNT, BATCH = 1_000_000, 128


def train(run):
    np.random.seed(0)
    users = np.random.randint(0, 3000, COUNT).astype("int32")
    items = np.random.randint(0, 2000, COUNT).astype("int32")
    rates = np.random.random(COUNT).astype("float32")
    user, item = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    left = keras.layers.Embedding(3000, 32)(user)
    right = keras.layers.Embedding(2000, 32)(item)
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.concatenate([left, right]))
    model = keras.Model([user, item], keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")

    def minibatches(count):
        rng = np.random.default_rng(0)
        for _ in range(count):
            if run.does("without"):
                rows = rng.integers(0, COUNT, BATCH)
            else:
                rows = np.random.choice(COUNT, BATCH, replace=False)
            yield [users[rows], items[rows]], rates[rows]

    with run.monitor() as monitor:
        for step, (x, y) in enumerate(monitor.batches(minibatches(250))):
            loss = model.train_on_batch(x, y)
            if step % 50 == 0:
                print(step, float(loss))


if __name__ == "__main__":
    main(train)
