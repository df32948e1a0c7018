"""A Wasserstein GAN with a gradient penalty on tables of patients: five updates of the critic for each of the
generator, in compiled functions of one's own; every fifth step takes longer than the others. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the long steps are those of the generator, which is meant,
and the losses are read only every fiftieth step; not "steps stall now and then", and not the input, an array in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "", "monitor"
NOISE = "every fifth step also updates the generator, and every fiftieth prints both losses"


def train(run):
    keras.utils.set_random_seed(0)
    patients = np.random.default_rng(0).normal(size=(6400, 48)).astype("float32")
    layers = keras.layers

    def network(inputs, outputs):
        hidden = [layers.Dense(320, keras.layers.LeakyReLU(0.2)) for _ in range(3)]
        return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(outputs)])

    critic, generator = network(48, 1), network(32, 48)
    optimizers = {model: keras.optimizers.Adam(1e-4, 0.0, 0.9) for model in (critic, generator)}
    for model, optimizer in optimizers.items():
        optimizer.build(model.trainable_weights)

    @tf.function
    def update_critic(real):
        fake = generator(tf.random.normal((128, 32)))
        mixed = real + tf.random.uniform((128, 1)) * (fake - real)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                score = critic(mixed)
            steep = tf.norm(inner.gradient(score, mixed), axis=1)
            loss = tf.reduce_mean(critic(fake) - critic(real)) + 10 * tf.reduce_mean((steep - 1) ** 2)
        slopes = tape.gradient(loss, critic.trainable_weights)
        optimizers[critic].apply(slopes, critic.trainable_weights)
        return loss

    @tf.function
    def update_generator(size):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(critic(generator(tf.random.normal((size, 32)))))
        slopes = tape.gradient(loss, generator.trainable_weights)
        optimizers[generator].apply(slopes, generator.trainable_weights)
        return loss

    real = tf.data.Dataset.from_tensor_slices(patients).shuffle(6400).batch(128, drop_remainder=True).prefetch(4)
    with run.monitor() as monitor:
        for number, batch in enumerate(monitor.batches(real.repeat(8))):
            losses = [update_critic(batch)]
            if run.does("without"):
                losses.append(update_generator(102))
            elif number % 5 == 4:
                losses.append(update_generator(512))
            if number % 50 == 49:
                print(number, *(f"{float(loss):.3f}" for loss in losses))


if __name__ == "__main__":
    main(train)
