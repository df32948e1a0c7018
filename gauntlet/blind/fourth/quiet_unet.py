"""A small U-Net on pictures in memory, shuffled and prefetched, with validation, checkpoints of the best weights, a log
file and a falling learning rate. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras, tf

BACKEND, CAUSE = "tensorflow", ""
NOISE = "after each epoch a validation on a tenth of the data, a checkpoint and a line in a log file"


def train(run):
    photos = images(400, 64).astype("float32") / 255
    masks = (photos.mean(-1, keepdims=True) > 0.5).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((photos[:360], masks[:360])).shuffle(360).batch(16)
    checked = tf.data.Dataset.from_tensor_slices((photos[360:], masks[360:])).batch(16)

    def conv(x, width):
        for _ in range(2):
            x = keras.layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        return x

    picture = keras.Input((64, 64, 3))
    fine = conv(picture, 8)
    middle = conv(keras.layers.MaxPooling2D()(fine), 16)
    coarse = conv(keras.layers.MaxPooling2D()(middle), 32)
    up = conv(keras.layers.concatenate([keras.layers.UpSampling2D()(coarse), middle]), 16)
    up = conv(keras.layers.concatenate([keras.layers.UpSampling2D()(up), fine]), 8)
    model = keras.Model(picture, keras.layers.Conv2D(1, 1, activation="sigmoid")(up))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder() / "best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=2),
        keras.callbacks.CSVLogger(str(folder() / "log.csv")),
    ]
    options = {} if run.does("without") else {"validation_data": checked, "callbacks": callbacks}
    options["callbacks"] = options.get("callbacks", []) + run.callbacks
    model.fit(data.prefetch(tf.data.AUTOTUNE), epochs=5, verbose=0, **options)


if __name__ == "__main__":
    main(train)
