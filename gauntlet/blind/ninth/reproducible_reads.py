"""Plots of seismic stations come from a slow store, 12 at a time; since a colleague made the runs reproducible by
`enable_op_determinism`, the card idles most of the time (the notes in the docs of that function).

Right: `tf.config.experimental.enable_op_determinism()` makes the map with its Python function read one file after
another, whatever `num_parallel_calls` says: take it out (a seed is enough for most), or read by stateless TensorFlow
operations, or cache what was read; not more `num_parallel_calls`, not a larger prefetch, and not the network.
"""

import time

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "enable_op_determinism makes a parallel map of slow reads sequential", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    if not run.does("without"):
        tf.config.experimental.enable_op_determinism()
    generator = np.random.default_rng(0)
    traces = generator.normal(size=(160, 256, 3)).astype("float32")

    def fetched(number):
        time.sleep(0.025)  # the store
        return traces[number]

    def load(number):
        trace = tf.numpy_function(fetched, [number], tf.float32)
        trace.set_shape((256, 3))
        return trace, number % 3

    options = tf.data.Options()
    options.threading.private_threadpool_size = 12
    stations = tf.data.Dataset.range(160).shuffle(160, seed=1)
    stations = stations.map(load, num_parallel_calls=12).batch(16).prefetch(4).with_options(options)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((256, 3)),
            *(layers.Conv1D(32, 7, 2, activation="relu") for _ in range(3)),
            layers.GlobalMaxPooling1D(),
            layers.Dense(3),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(stations, epochs=2, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
