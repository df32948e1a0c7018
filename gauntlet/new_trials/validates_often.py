# try: validation_freq=4
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(6_400, 64)).astype("float32")
model.fit(x, x[:, :1], validation_data=(x, x[:, :1]), epochs=24, verbose=0)
