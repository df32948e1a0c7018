"""A `tf.function` that is given the learning rate as a Python number, another one in each step (tensorflow#34025).

Right: the function is traced anew for each value: pass a tensor (`tf.constant(rate)`) or keep the rate in a variable;
nothing about the input.
"""

import math

from gauntlet.blind import main
from gauntlet.helpers import keras, rows, tf

BACKEND, CAUSE, USES = "tensorflow", "a tf.function is retraced in each step for a Python number", "monitor"


def train(run):
    x, y = rows(6400, 40)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(6400).batch(64).prefetch(2)
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((40,)), *layers, keras.layers.Dense(1)])
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(x, y, rate):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        for variable, slope in zip(model.trainable_variables, slopes, strict=True):
            variable.assign_sub(rate * slope)
        return loss

    count = 0
    with run.monitor() as monitor:
        for features, labels in monitor.batches(data):
            rate = 0.05 * (1 + math.cos(math.pi * count / 100))
            step(features, labels, tf.constant(rate) if run.does("without") else rate)
            count += 1


if __name__ == "__main__":
    main(train)
