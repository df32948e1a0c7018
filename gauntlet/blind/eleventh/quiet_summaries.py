"""Sounds of insects with a training loop of one's own, under `tf.function`: `tf.summary.scalar` writes the loss and the
rate of each step, a line is printed every 20 steps, and the rate is assigned anew in each. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the summaries are written by a thread and take a small
part of a millisecond, the rate is a variable (nothing is traced anew), and the steps compute; not the summaries, not
the printing, not retracing, and not the input, which is in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "", "monitor"
NOISE = "summaries of two scalars are written and a learning rate is assigned in each step"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    sounds = generator.normal(size=(32 * 60, 48, 40, 1)).astype("float32")
    kinds = generator.integers(0, 12, len(sounds))
    data = tf.data.Dataset.from_tensor_slices((sounds, kinds)).shuffle(512).batch(32).prefetch(tf.data.AUTOTUNE)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 40, 1)),
            *(layers.Conv2D(24, 3, activation="relu"), layers.MaxPooling2D(2)),
            *(layers.Conv2D(48, 3, activation="relu"), layers.MaxPooling2D(2)),
            *(layers.Conv2D(64, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(12)),
        ]
    )
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    writer = tf.summary.create_file_writer(str(folder()))

    @tf.function
    def step(sound, kind):
        with tf.GradientTape() as tape:
            loss = loss_of(kind, model(sound, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    done = 0
    with run.monitor() as monitor, writer.as_default():
        for epoch in range(9):
            for sound, kind in monitor.batches(data):
                loss = step(sound, kind)
                done += 1
                if not run.does("without"):
                    rate = 0.01 * 0.5 * (1 + np.cos(np.pi * done / 180))
                    optimizer.learning_rate.assign(rate)
                    tf.summary.scalar("loss", loss, step=done)
                    tf.summary.scalar("rate", rate, step=done)
                    if done % 20 == 0:
                        print(f"epoch {epoch}, step {done}: {float(loss):.3f}")


if __name__ == "__main__":
    main(train)
