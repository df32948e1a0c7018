"""Electricity of households: a Python generator yields whole batches of windows through `from_generator`, which people
are warned of; a prefetch keeps it ahead of the steps, which need four times as long. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the generator works while the steps run and nobody waits
for it; not "from_generator is slow", not a cache, and not more threads.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "", "callback"
NOISE = "a Python generator makes the batches by from_generator, ahead of the steps"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    loads = np.cumsum(generator.normal(size=(60_000, 8)), 0).astype("float32")

    def batches():
        for _ in range(40):
            starts = generator.integers(0, len(loads) - 120, 64)
            windows = np.stack([loads[start : start + 120] for start in starts])
            windows = (windows - windows.mean(1, keepdims=True)) / (windows.std(1, keepdims=True) + 1e-3)
            yield windows[:, :96], windows[:, 96:, 0]

    sides = (tf.TensorSpec((64, 96, 8)), tf.TensorSpec((64, 24)))
    windows = tf.data.Dataset.from_generator(batches, output_signature=sides)
    if run.does("without"):
        windows = tf.data.Dataset.from_tensors(next(batches())).repeat(40)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((96, 8)), layers.GRU(64, return_sequences=True), layers.GRU(64), layers.Dense(24)]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mae")
    model.fit(windows.prefetch(4), epochs=3, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
