"""A recommender whose sequence draws new negatives one by one after each epoch (ports of hexiangnan's NCF).

Right: drawing in `on_epoch_end` of the program's PyDataset, in Python, holds training up between the epochs: draw all
at once with numpy and check the few that are known, or draw in another thread or every few epochs.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", "on_epoch_end of a PyDataset draws negatives one by one in Python"

USERS, ITEMS, LIKES = 1500, 2000, 16


def train(run):
    rng = np.random.default_rng(0)
    liked = rng.integers(0, ITEMS, (USERS, LIKES))
    every_item = np.arange(ITEMS)
    known = {(user, int(item)) for user in range(USERS) for item in liked[user]}

    class Pairs(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.draw()

        def draw(self):
            users = np.repeat(np.arange(USERS), LIKES * 5)
            items = np.repeat(liked.reshape(-1), 5).reshape(-1, 5)
            if run.does("without"):
                items[:, 1:] = rng.integers(0, ITEMS, (len(items), 4))
            else:
                for row, user in zip(items, users[::5], strict=True):
                    for column in range(1, 5):
                        item = np.random.choice(every_item)
                        while (user, item) in known:
                            item = np.random.choice(every_item)
                        row[column] = item
            order = rng.permutation(len(users))
            self.x = np.stack([users, items.reshape(-1)], 1)[order]
            self.y = np.tile([1.0, 0, 0, 0, 0], len(items)).astype("float32")[order, None]

        def __len__(self):
            return len(self.y) // 512

        def __getitem__(self, index):
            part = slice(512 * index, 512 * index + 512)
            return (self.x[part, :1], self.x[part, 1:]), self.y[part]

        def on_epoch_end(self):
            self.draw()

    user, item = keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")
    both = [keras.layers.Embedding(USERS, 16)(user), keras.layers.Embedding(ITEMS, 16)(item)]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(both))
    hidden = keras.layers.Dense(32, activation="relu")(hidden)
    model = keras.Model([user, item], keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    pairs = Pairs()
    model.fit(pairs, epochs=20, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
