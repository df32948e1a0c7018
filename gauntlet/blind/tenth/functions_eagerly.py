"""A convolutional network with a layer and a loss of one's own; to step through them with a debugger somebody called
`tf.config.run_functions_eagerly(True)` at the top of the script, and left it there.

Right: `tf.config.run_functions_eagerly(True)` makes each step run eagerly, operation by operation: take it out; not
the input, which is in memory, not the layer of one's own, and not a larger batch.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "run_functions_eagerly(True) was left in after debugging", "run"


class Gate(keras.layers.Layer):
    """Weighs channels by their means."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        means = keras.ops.mean(inputs, axis=1, keepdims=True)
        return inputs * keras.ops.sigmoid(self.scale * means)


def train(run):
    tf.config.run_functions_eagerly(not run.does("without"))
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    pulses, kinds = generator.normal(size=(1600, 96, 4)).astype("float32"), generator.integers(0, 4, 1600)
    layers = keras.layers
    blocks = []
    for width in (16, 16, 24, 24, 32, 32):
        blocks += [layers.Conv1D(width, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), Gate()]
    model = keras.Sequential(
        [keras.Input((96, 4)), *blocks, layers.GlobalAveragePooling1D(), layers.Dense(4, "softmax")]
    )

    def smooth(truth, guess):
        """Return the cross-entropy with a tenth of the weight on all kinds."""
        wanted = 0.9 * keras.ops.one_hot(keras.ops.cast(truth[:, 0], "int32"), 4) + 0.025
        return -keras.ops.mean(keras.ops.sum(wanted * keras.ops.log(guess + 1e-6), axis=-1))

    model.compile("adam", smooth, metrics=["accuracy"])
    run.start()
    model.fit(pulses, kinds[:, None], batch_size=16, epochs=2, verbose=2)


if __name__ == "__main__":
    main(train)
