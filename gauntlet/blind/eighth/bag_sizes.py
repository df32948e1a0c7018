"""A slide of tissue is a bag of tiles, some with 40 tiles and some with 400; a loop of one's own with `tf.function`
takes a second for a bag, and now and then a hundredth of it (tensorflow/tensorflow#38002, #34025).

Right: `step` is traced anew for each number of tiles that it has not seen: an `input_signature` with `None` for it (or
`reduce_retracing=True`), or pad the bags to a few sizes; not that the first call takes long, not the reading of the
bags, and not that it would have to run eagerly.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "a tf.function is traced anew for each number of tiles in a bag", "monitor"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    sizes = generator.choice(np.arange(40, 400), 16, replace=False)
    bags = [generator.normal(size=(size, 256)).astype("float32") for size in sizes]

    layers = keras.layers
    tiles = keras.Input((256,))
    hidden = tiles
    for _ in range(4):
        hidden = layers.LayerNormalization()(layers.Dense(128, activation="gelu")(hidden))
    scores = layers.Dense(1)(layers.Dense(64, activation="tanh")(hidden))
    model = keras.Model(tiles, [hidden, scores])
    head = keras.Sequential([keras.Input((128,)), layers.Dense(64, activation="relu"), layers.Dense(1)])
    weights = model.trainable_weights + head.trainable_weights
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(weights)

    @tf.function(reduce_retracing=run.does("without"))
    def step(bag, label):
        with tf.GradientTape() as tape:
            hidden, scores = model(bag, training=True)
            slide = tf.reduce_sum(tf.nn.softmax(scores, 0) * hidden, 0, keepdims=True)
            loss = tf.nn.sigmoid_cross_entropy_with_logits(label, head(slide)[0, 0])
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    with run.monitor() as monitor:
        for _ in range(3):
            for number, bag in enumerate(monitor.batches(bags)):
                loss = step(tf.constant(bag), tf.constant(float(number % 2)))
        loss.numpy()


if __name__ == "__main__":
    main(train)
