"""Each sample is an object of its own in a bucket far away, fetched one after another inside `map`, while others use
the machine (many a "training from S3/GCS is slow" thread).

Right: still the input, which waits for one object at a time: `num_parallel_calls=` of the `map` (it waits and does not
compute), `cache()`, or many samples in one object; not the busy neighbours.
"""

import time

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import images, keras, tf

BACKEND, CAUSE, USES, BUSY = (
    "tensorflow",
    "map fetches one object after another from a store with 12 ms latency; two other processes are busy",
    "callback",
    "plain without",
)


def train(run):
    stored = {f"train/{i:06}.npy": image.tobytes() for i, image in enumerate(images(400, 32))}

    def download(key):
        if not run.does("without"):
            time.sleep(0.012)  # the answer of the store
        return np.frombuffer(stored[key.decode()], "uint8").reshape(32, 32, 3).astype("float32") / 255

    def fetch(key, label):
        image = tf.numpy_function(download, [key], tf.float32)
        image.set_shape((32, 32, 3))
        return image, label

    data = tf.data.Dataset.from_tensor_slices((list(stored), np.arange(400) % 5)).shuffle(400)
    data = data.map(fetch).batch(8).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, epochs=3, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
