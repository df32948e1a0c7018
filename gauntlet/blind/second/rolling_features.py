"""Stock-like series whose rolling means are computed in pandas for each window when it is asked for.

Right: features are computed in Python in the training process: compute them once for the whole series, at
`__getitem__`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", "a PyDataset computes rolling features of each window in pandas"


def features(prices):
    return np.stack([prices.rolling(n, min_periods=1).mean() for n in (1, 5, 20)], 1).astype("float32")


def train(run):
    import pandas as pd

    prices = pd.Series(np.random.default_rng(0).standard_normal(1200).cumsum())
    ready = [features(prices[i : i + 60]) for i in range(1024)] if run.does("without") else []

    class Windows(keras.utils.PyDataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            starts = range(32 * index, 32 * index + 32)
            windows = [ready[i] if ready else features(prices[i : i + 60]) for i in starts]
            return np.stack(windows), np.array([[prices[i + 60]] for i in starts], "float32")

    model = keras.Sequential(
        [keras.layers.Conv1D(16, 5, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    model.fit(Windows(), epochs=3, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
