# try: workers=4
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np


class Computed(keras.utils.PyDataset):
    def __len__(self):
        return 300

    def __getitem__(self, i):
        total = sum(k * 0.5 for k in range(150_000))
        return np.full((16, 32), total / 1e10, "f"), np.ones((16, 1), "f")


model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Computed(), epochs=2, verbose=0)
