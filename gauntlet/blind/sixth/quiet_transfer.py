"""Transfer learning as the guide has it: a new head first, with the base frozen, then all of it by a smaller learning
rate, for which the model is compiled again; a layer of the model flips the photos. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: it is compiled twice because it must be, and a real
training has more of the steps.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE = "tensorflow", ""
NOISE = "two fits, for the second of which the model is compiled again"


def train(run):
    keras.utils.set_random_seed(0)
    photos, kinds = images(800, 48).astype("float32"), np.arange(800) % 5
    data = tf.data.Dataset.from_tensor_slices((photos, kinds)).shuffle(800).batch(32).prefetch(2)

    layers = keras.layers
    base = keras.Sequential([keras.Input((48, 48, 3))])
    for filters in (16, 32, 48):
        base.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        base.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        base.add(layers.MaxPooling2D())
    inputs = keras.Input((48, 48, 3))
    hidden = layers.Rescaling(1 / 127.5, -1)(inputs)
    hidden = layers.GlobalAveragePooling2D()(base(layers.RandomFlip("horizontal")(hidden)))
    outputs = layers.Dense(5, activation="softmax")(layers.Dropout(0.2)(hidden))
    model = keras.Model(inputs, outputs)

    epochs = 14
    if not run.does("without"):
        base.trainable = False
        model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(data, epochs=2, verbose=0, callbacks=run.callbacks)
        base.trainable = True
        epochs = 13
    model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(data, epochs=epochs, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
