"""The step itself: compilation, printing, precision; and trainings that nothing holds back."""

from __future__ import annotations

from gauntlet.helpers import convnet, gathered, images, keras, mlp, np, rows, tf
from gauntlet.registry import program


@program(
    "every new length of a batch is compiled again",
    "without:padded",
    "recompilation",
    cures={"padded": r"pad|bucket|drop_remainder"},
)
def varying_shapes(run):
    lengths = np.random.default_rng(0).permutation(np.arange(20, 60))

    def batches():
        for length in lengths:
            width = 64 if run.does("padded") else length
            yield np.ones((16, width, 8), "float32"), np.ones((16, 1), "float32")

    model = keras.Sequential(
        [
            keras.layers.Conv1D(16, 3, activation="relu"),
            keras.layers.Conv1D(16, 3),
            keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=True)
    model.fit(batches(), verbose=0, callbacks=run.callbacks)
    return model


@program(
    "every new length of a batch is compiled again",
    "without:padded",
    "recompilation",
    cures={"padded": r"pad|bucket|drop_remainder"},
    backend="jax",
)
def varying_shapes_jax(run):
    return varying_shapes(run)


@program(
    "the step prints a tensor",
    "without:silent",
    r"print|step",
    nothing=True,
    harmful=r"\.map\(|cache|batch\(|validation",
)
def printing(run):
    class Printing(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(64), keras.layers.Dense(1)

        def call(self, x):
            hidden = self.hidden(x)
            if not run.does("silent"):
                tf.print("hidden:", hidden, summarize=-1)
            return self.out(hidden)

    x, y = rows(4800, 8)
    model = Printing()
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(64).cache()
    model.fit(data, epochs=24, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "half precision, which this CPU computes more slowly",
    "without:float32",
    r"precision|float16",
    cures={"float32": r"float32|set_global_policy"},
)
def half_precision(run):
    if not run.does("float32"):
        keras.mixed_precision.set_global_policy("mixed_float16")
    data = tf.data.Dataset.from_tensor_slices((images(320, 64), np.arange(320) % 2))
    model = convnet(64, 16, keras.layers.Rescaling(1 / 255))
    model.fit(data.batch(32).cache(), epochs=18, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "digits of 28 by 28 and a dense network: autotuning holds up each epoch's set-up of the arrays",
    "without:gathered",
    "each epoch sets up its input again",
    cures={"gathered": r"tf\.gather\(features"},
)
def digits(run):
    x = np.random.default_rng(0).random((4000, 784)).astype("float32")
    y = (x[:, :1] > 0.5).astype("float32")
    model = mlp(784, units=512)
    if run.does("gathered"):
        model.fit(gathered(x, y, 128), epochs=30, verbose=0, callbacks=run.callbacks)
        return model
    model.fit(x, y, batch_size=128, epochs=30, verbose=0, callbacks=run.callbacks)
    return model


@program("nothing: digits of 28 by 28 and a dense network", "model", None, backend="torch")
def digits_torch(run):
    return digits(run)


@program(
    "nothing: digits of 28 by 28 and a dense network; others keep both cores busy",
    "model",
    None,
    burners=2,
    backend="jax",
)
def digits_jax_busy(run):
    return digits(run)


@program("the model: wide convolutions", "model", None)
def convolutions(run):
    data = tf.data.Dataset.from_tensor_slices((images(320, 64), np.arange(320) % 2))
    model = convnet(64, 64, keras.layers.Rescaling(1 / 255))
    model.fit(data.batch(32).cache().prefetch(2), epochs=12, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "the model: wide convolutions; others keep both cores busy", "model", None, burners=2, harmful="map|cache|prefetch"
)
def convolutions_busy(run):
    return convolutions(run)
