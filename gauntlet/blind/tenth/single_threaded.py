"""Defects of castings by a convolutional network; to get the same numbers in each run, an answer on a forum said to
give TensorFlow one thread, and since then one core works and the other rests.

Right: `tf.config.threading.set_intra_op_parallelism_threads(1)` (and `inter_op`) lets one core compute: take the lines
out (a seed, or `enable_op_determinism`, is what makes runs repeatable); not the input, which is in memory, not a
smaller network, not the batch size, and not other processes.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "TensorFlow was given one thread, on a machine of two cores", "run"


def train(run):
    if not run.does("without"):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    castings, defects = generator.random((768, 96, 96, 1), "float32"), generator.integers(0, 2, 768)
    layers = keras.layers
    model = keras.Sequential([keras.Input((96, 96, 1))])
    for width in (24, 32, 48):
        model.add(layers.Conv2D(width, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(1, "sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    run.start()
    model.fit(castings, defects, batch_size=64, epochs=5, verbose=2)


if __name__ == "__main__":
    main(train)
