"""Leaves with a disease, by transfer of features; the validation set was batched with 1, as the notebook took single
pictures out of it for its plots. The epochs' last part lasts longer than the rest.

Right: the validation after each epoch goes through 400 rows in batches of one row: batch it as large as the training's
(`validation.batch(64)`); not that it would be too large or too frequent, not the training's input, and not the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "the validation set has batches of one row", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    leaves, ill = generator.normal(size=(4400, 16, 16, 8)).astype("float32"), generator.integers(0, 4, 4400)
    training = tf.data.Dataset.from_tensor_slices((leaves[:2400], ill[:2400])).shuffle(2400).batch(64)
    validation = tf.data.Dataset.from_tensor_slices((leaves[2400:3600], ill[2400:3600]))
    validation = validation.batch(64 if run.does("without") else 1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 8)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(48, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(
        training.prefetch(2),
        validation_data=validation.prefetch(2),
        epochs=5,
        verbose=2,
        callbacks=[keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True), *run.callbacks],
    )


if __name__ == "__main__":
    main(train)
