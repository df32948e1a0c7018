# try: without ModelCheckpoint
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

model = keras.Sequential([keras.layers.Dense(1024), keras.layers.Dense(1024), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(640, 64)).astype("float32")
save = keras.callbacks.ModelCheckpoint("saved.keras")
model.fit(x, x[:, :1], epochs=24, verbose=0, callbacks=[save])
