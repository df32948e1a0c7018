"""A program that trains on TensorFlow with a profiler window; its argument is where to record."""

FIT = """
import sys
import numpy as np, keras, tensorflow as tf
from gpu_util_callback import GpuUtilCallback
x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] > 0)).batch(32).prefetch(2)
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
model.fit(data, epochs=2, verbose=0, callbacks=[GpuUtilCallback(sys.argv[1], trace=[(20, 26)])])
"""
