"""Routes through warehouses as graphs, some ten times as large as others: a step takes as long as its graphs are
large, so that steps differ widely; the function is compiled once, for any number of nodes. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: long steps are those of large graphs, and nothing is
traced anew (`None` in the signature); not recompilation, not padding to one size, not that some steps stall, and not
the input, which is made before the training.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "", "monitor"
NOISE = "batches have 400 to 4,000 nodes, so that steps differ by a factor of ten"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    batches = []
    for _ in range(80):
        nodes = 1800 if run.does("without") else int(400 * 10 ** generator.random())
        ends = generator.integers(0, nodes, (2, 4 * nodes)).astype("int32")
        features = generator.normal(size=(nodes, 32)).astype("float32")
        batches.append((tf.constant(features), tf.constant(ends), tf.constant(features[:, :1])))
    layers = [keras.layers.Dense(96, "relu") for _ in range(4)]
    head = keras.layers.Dense(1)
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 32), tf.float32),
            tf.TensorSpec((2, None), tf.int32),
            tf.TensorSpec((None, 1), tf.float32),
        ]
    )
    def step(features, ends, wanted):
        with tf.GradientTape() as tape:
            hidden = features
            for layer in layers:
                sent = tf.gather(layer(hidden), ends[0])
                hidden = tf.math.unsorted_segment_mean(sent, ends[1], tf.shape(features)[0])
            loss = tf.reduce_mean((head(hidden) - wanted) ** 2)
        weights = [weight for layer in [*layers, head] for weight in layer.trainable_weights]
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    width = 32
    for layer in [*layers, head]:
        layer.build((None, width))
        width = 96
    optimizer.build([weight for layer in [*layers, head] for weight in layer.trainable_weights])
    with run.monitor() as monitor:
        for epoch in range(4):
            for batch in monitor.batches(batches):
                loss = step(*batch)
            print(f"epoch {epoch}: {float(loss):.3f}")


if __name__ == "__main__":
    main(train)
