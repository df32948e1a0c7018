"""Joints of a skeleton, whose bones are a matrix of each sample's own; the layer multiplies sample by sample with
`tf.map_fn`, which is a loop (tensorflow/tensorflow#24774).

Right: in the step: the layer `Bones` calls `tf.map_fn` for the samples of each batch, a loop of single small
operations forwards and backwards: multiply the whole batch (`tf.matmul` or `einsum` on three dimensions, or
`tf.vectorized_map`); not the input, which is in memory, not run_eagerly, and not the batch size.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE = "tensorflow", "a layer goes through the samples of a batch with tf.map_fn"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    joints = generator.normal(size=(3200, 24, 8)).astype("float32")
    bones = generator.random((3200, 24, 24)).astype("float32") / 12
    gestures = generator.integers(0, 6, 3200)

    class Bones(keras.layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.units = units

        def build(self, shapes):
            self.kernel = self.add_weight(shape=(shapes[0][-1], self.units), name="kernel")

        def call(self, inputs):
            joints, bones = inputs
            if run.does("without"):
                return tf.nn.relu(bones @ (joints @ self.kernel))

            def one(sample):
                return tf.nn.relu(sample[1] @ (sample[0] @ self.kernel))

            return tf.map_fn(one, (joints, bones), fn_output_signature=tf.TensorSpec((24, self.units), "float32"))

    one, other = keras.Input((24, 8)), keras.Input((24, 24))
    hidden = one
    for units in (64, 64):
        hidden = Bones(units)([hidden, other])
    hidden = keras.layers.Dense(128, activation="relu")(keras.layers.Flatten()(hidden))
    model = keras.Model([one, other], keras.layers.Dense(6)(hidden))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit([joints, bones], gestures, batch_size=64, epochs=10, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
