"""A GAN of the best known collection of Keras GANs, whose pictures for the discriminator come from `generator.predict`
in each step of a plain loop.

Right: in each step the program calls `predict`, which builds a data set and goes through its callbacks for one batch of
16: call the generator itself (`generator(noise, training=False)`), at best in a compiled function; nothing about the
input. That `train_on_batch` costs much besides is true, but gains less.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "generator.predict is called in each step of a train_on_batch loop", "monitor"


def train(run):
    keras.utils.set_random_seed(0)
    photos = images(640, 16).astype("float32") / 127.5 - 1
    rng, layers = np.random.default_rng(0), keras.layers
    critic = keras.Sequential([keras.Input((16, 16, 3))])
    for filters, stride in ((16, 2), (32, 2)):
        critic.add(layers.Conv2D(filters, 3, stride, "same"))
        critic.add(layers.LeakyReLU(0.2))
    critic.add(layers.Flatten())
    critic.add(layers.Dense(1, activation="sigmoid"))
    critic.compile("adam", "binary_crossentropy")

    generator = keras.Sequential([keras.Input((32,)), layers.Dense(4 * 4 * 32, "relu"), layers.Reshape((4, 4, 32))])
    for filters in (32, 16):
        generator.add(layers.UpSampling2D())
        generator.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
    generator.add(layers.Conv2D(3, 3, padding="same", activation="tanh"))
    critic.trainable = False
    combined = keras.Sequential([keras.Input((32,)), generator, critic])
    combined.compile("adam", "binary_crossentropy")
    ones, zeros = np.ones((16, 1), "float32"), np.zeros((16, 1), "float32")
    called = tf.function(generator)

    with run.monitor() as monitor:
        for _ in range(200):
            with monitor.step():
                noise = rng.normal(size=(16, 32)).astype("float32")
                made = called(noise).numpy() if run.does("without") else generator.predict(noise, verbose=0)
                critic.train_on_batch(photos[rng.integers(0, 640, 16)], ones)
                critic.train_on_batch(made, zeros)
                combined.train_on_batch(noise, ones)


if __name__ == "__main__":
    main(train)
