"""A recommender with wide embeddings and short epochs; `ModelCheckpoint(save_best_only=True)` watches the training's
loss, which falls in each epoch, so that the whole model is written after each.

Right: the checkpoint after each epoch: 50 MB (with the optimizer's state more) are written after 10 short steps, since
`monitor="loss"` improves each time: save less often (every tenth epoch, or only at the end), or watch a validation's
loss, or only the weights (`save_weights_only`); not the input, which is in memory, and not the steps.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE, USES = (
    "tensorflow",
    "save_best_only on the training's loss saves the model after each short epoch",
    "callback",
)


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    readers, books = generator.integers(0, 60_000, 2560), generator.integers(0, 40_000, 2560)
    stars = generator.uniform(1, 5, 2560).astype("float32")
    layers = keras.layers
    reader, book = keras.Input((), dtype="int32", name="reader"), keras.Input((), dtype="int32", name="book")
    both = layers.Concatenate()([layers.Embedding(60_000, 64)(reader), layers.Embedding(40_000, 64)(book)])
    outputs = layers.Dense(1)(layers.Dense(128, "relu")(both))
    model = keras.Model([reader, book], outputs)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    every = 10 * 10 if run.does("without") else "epoch"
    best = keras.callbacks.ModelCheckpoint(
        str(folder() / "best.keras"), monitor="loss", save_best_only=True, save_freq=every
    )
    model.fit([readers, books], stars, batch_size=256, epochs=30, verbose=2, callbacks=[best, *run.callbacks])


if __name__ == "__main__":
    main(train)
