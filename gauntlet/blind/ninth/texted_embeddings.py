"""Products get embeddings of 64 numbers; after each epoch a callback writes all of them as text for the projector, so
that their way can be shown as a film. With 12,000 products an epoch takes three times as long.

Right: after each epoch `np.savetxt` writes 12,000 rows of 64 numbers as text, number by number: `np.save` (binary), or
write every tenth epoch or only once at the end; not the steps, not the input, and not the predict of the embeddings,
which is short.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE, USES = "jax", "np.savetxt writes all embeddings as text after each epoch", "callback"


class Projector(keras.callbacks.Callback):
    """Writes where each product is."""

    def __init__(self, directory, layer, binary):
        super().__init__()
        self.directory, self.layer, self.binary = directory, layer, binary

    def on_epoch_end(self, epoch, logs=None):
        places = np.asarray(self.layer.embeddings)
        if self.binary:
            np.save(self.directory / f"epoch_{epoch}.npy", places)
        else:
            np.savetxt(self.directory / f"epoch_{epoch}.tsv", places, delimiter="\t")


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    baskets, bought = generator.integers(0, 12_000, (96 * 60, 10)), generator.integers(0, 2, 96 * 60)
    layers = keras.layers
    products = layers.Embedding(12_000, 64)
    model = keras.Sequential(
        [
            keras.Input((10,), dtype="int32"),
            products,
            layers.GlobalAveragePooling1D(),
            layers.Dense(256, "relu"),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy")
    own = [Projector(folder(), products, run.does("without"))]
    model.fit(baskets, bought, batch_size=96, epochs=9, verbose=2, callbacks=own + run.callbacks)


if __name__ == "__main__":
    main(train)
