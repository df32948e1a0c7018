"""A deep network of many small layers that takes JAX long to compile, once, and then trains. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: that it compiles is true of the first step only, and a
longer training has more of the steps.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np

BACKEND, CAUSE, NOISE = "jax", "", "a validation on a tenth of the photos after each epoch"


def train(run):
    keras.utils.set_random_seed(0)
    photos, labels = images(550, 16).astype("float32") / 255, np.arange(550) % 10

    layers = keras.layers
    inputs = keras.Input((16, 16, 3))
    hidden = layers.Conv2D(16, 3, padding="same")(inputs)
    for stage in range(3):
        for _ in range(4):
            branch = layers.BatchNormalization()(hidden)
            branch = layers.Conv2D(16 * 2**stage, 3, padding="same")(layers.Activation("relu")(branch))
            branch = layers.Activation("relu")(layers.BatchNormalization()(branch))
            branch = layers.Conv2D(16 * 2**stage, 3, padding="same")(branch)
            hidden = layers.Add()([hidden, branch])
        if stage < 2:
            hidden = layers.Conv2D(32 * 2**stage, 1, 2)(hidden)
    outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    held = None if run.does("without") else (photos[500:], labels[500:])
    model.fit(
        photos[:500],
        labels[:500],
        batch_size=50,
        epochs=4,
        validation_data=held,
        validation_batch_size=50,
        verbose=0,
        callbacks=run.callbacks,
    )


if __name__ == "__main__":
    main(train)
