"""Many fits in one script, and models with a training step of their own: GAN, RL, tuners."""

from __future__ import annotations

from gauntlet.helpers import folder, keras, mlp, np, rows, tf
from gauntlet.registry import program

PREDICT = {"called": "predict_on_batch"}


@program("nothing outside the model: generator and discriminator", "model", None)
def gan(run):
    layers = keras.layers
    generator = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(7 * 7 * 64),
            layers.Reshape((7, 7, 64)),
            layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
        ]
    )
    discriminator = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 4, strides=2, activation="relu"),
            layers.Conv2D(64, 4, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )

    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.g, self.d = generator, discriminator
            self.g_optimizer, self.d_optimizer = keras.optimizers.Adam(), keras.optimizers.Adam()
            self.loss_function = keras.losses.BinaryCrossentropy(from_logits=True)

        def train_step(self, real):
            noise = keras.random.normal((tf.shape(real)[0], 64))
            with tf.GradientTape(persistent=True) as tape:
                fake = self.g(noise)
                of_fake, of_real = self.d(fake), self.d(real)
                d_loss = self.loss_function(tf.ones_like(of_real), of_real)
                d_loss += self.loss_function(tf.zeros_like(of_fake), of_fake)
                g_loss = self.loss_function(tf.ones_like(of_fake), of_fake)
            for part, loss, optimizer in ((self.d, d_loss, self.d_optimizer), (self.g, g_loss, self.g_optimizer)):
                optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
            return {"d_loss": d_loss, "g_loss": g_loss}

    digits = np.random.default_rng(0).random((1280, 28, 28, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(digits).shuffle(1280, seed=1).batch(32).prefetch(2)
    model = GAN()
    model.compile()
    model.fit(data, epochs=9, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "model.predict is called for each action, between fits of one batch", "without:called", r"predict", cures=PREDICT
)
def dqn(run, on_gpu=False):
    model = mlp(8, outputs=2)
    state, memory = np.zeros((1, 8), "float32"), []
    callbacks = run.callbacks
    for _ in range(run.steps(60) if on_gpu else 10):
        for _ in range(12):
            values = model.predict_on_batch(state) if run.does("called") else model.predict(state, verbose=0)
            state = np.roll(state, 1) + np.float32(np.argmax(values))
            memory.append(state[0])
        batch = np.array(memory[-12:])
        model.fit(batch, np.zeros((12, 2)), verbose=0, callbacks=callbacks)
    return model


@program(
    "text is generated with model.predict, one character at a time, between fits",
    "without:called",
    r"predict",
    cures=PREDICT,
)
def char_rnn(run):
    text = np.random.default_rng(0).integers(0, 50, (640, 21))
    model = keras.Sequential([keras.layers.Embedding(50, 16), keras.layers.GRU(32), keras.layers.Dense(50)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for epoch in range(4):
        model.fit(text[:, :20], text[:, 20], batch_size=32, verbose=0, callbacks=run.callbacks)
        written = list(text[epoch, :20])
        for _ in range(25):
            window = np.array([written[-20:]])
            logits = model.predict_on_batch(window) if run.does("called") else model.predict(window, verbose=0)
            written.append(int(np.argmax(logits)))
    return model


@program(
    "fit of one epoch and evaluate in a loop: each call sets itself up",
    "without:one",
    r"between_fits|one call of fit",
    cures={"one": r"epochs=(\d+), validation_data"},
)
def fits_and_evaluates(run):
    x, y = rows(4000, 8)
    model = mlp(8)
    trained, held_out = (x[:3000], y[:3000]), (x[3000:], y[3000:])
    if run.does("one"):
        epochs = run.number(30)
        model.fit(*trained, batch_size=64, epochs=epochs, validation_data=held_out, verbose=0, callbacks=run.callbacks)
        return model
    for _ in range(30):
        model.fit(*trained, batch_size=64, verbose=0, callbacks=run.callbacks)
        model.evaluate(*held_out, verbose=0)
    return model


@program("each of twelve short fits compiles a model of its own", "without:one", r"compil", harmful=r"pad|bucket")
def grid_search(run):
    x, y = rows(640, 8)
    best = None
    for units in (16, 32, 64, 128):
        for rate in (1e-2, 1e-3, 1e-4):
            if run.does("one") and best is not None:
                best.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=run.callbacks)
                continue
            model = mlp(8, units=units)
            model.optimizer.learning_rate = rate
            model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=run.callbacks)
            best = best or model
    return best


@program("each trial of the tuner compiles a model of its own", "without:few", r"compil", harmful=r"pad|bucket")
def keras_tuner(run):
    import keras_tuner as kt

    def build(parameters):
        return mlp(8, units=parameters.Int("units", 16, 256, step=16), layers=3, metrics=["mse"])

    x, y = rows(640, 8)
    tuner = kt.RandomSearch(
        build,
        kt.Objective("val_loss", "min"),
        max_trials=2 if run.does("few") else 8,
        seed=1,
        overwrite=True,
        directory=str(folder() / "tuner"),
        project_name="gauntlet",
    )
    tuner.search(x, y, epochs=2, validation_data=(x[:64], y[:64]), verbose=0, callbacks=run.callbacks)
