"""A training loop with `GradientTape` that nobody compiled ("my custom loop is ten times slower than fit").

Right: the step runs operation by operation in Python: `@tf.function` on the step; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, rows, tf

BACKEND, CAUSE, USES = "tensorflow", "a GradientTape loop without tf.function", "monitor"


def train(run):
    x, y = rows(6400, 40)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(6400).batch(32).prefetch(2)
    layers = [keras.layers.Dense(96, activation="relu") for _ in range(5)]
    model = keras.Sequential([keras.Input((40,)), *layers, keras.layers.Dense(1)])
    optimizer, loss_of = keras.optimizers.Adam(), keras.losses.BinaryCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    if run.does("without"):
        step = tf.function(step)
    with run.monitor() as monitor:
        for _ in range(2):
            for features, labels in monitor.batches(data):
                step(features, labels)


if __name__ == "__main__":
    main(train)
