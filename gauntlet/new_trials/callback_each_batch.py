# try: Plot.on_train_batch_end every 20
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import time

import keras
import numpy as np


class Plot(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)


model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(16_000, 32)).astype("float32")
model.fit(x, x[:, :1], batch_size=16, epochs=1, verbose=0, callbacks=[Plot()])
