"""Photos of mushrooms by `tf.data`: files are listed, decoded in a `map`, and split by `take` and `skip` as in many
answers; the validation of an eighth of the photos takes as long as the training of the rest.

Right: validation holds training up: `photos.skip(...)` stands behind the `map`, so that each validation decodes all
photos of the training and throws them away before its own: split the list of files before the `map` (or `cache()` the
validation set); not that the validation set is too large, not that it comes too often first of all, not the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "skip() behind the map decodes all training photos in each validation", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    directory, count, trained = folder(), 480, 420
    for number in range(count):
        photo = np.kron(generator.integers(0, 256, (16, 16, 3), dtype="uint8"), np.ones((20, 20, 1), "uint8"))
        tf.io.write_file(str(directory / f"{number % 5}_{number}.jpg"), tf.io.encode_jpeg(photo))

    def decode(path):
        label = tf.strings.to_number(tf.strings.split(tf.strings.split(path, "/")[-1], "_")[0], tf.int32)
        photo = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(photo, (48, 48)) / 255, label

    files = tf.data.Dataset.list_files(str(directory / "*.jpg"), shuffle=False)
    if run.does("without"):
        training = files.take(trained).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        validation = files.skip(trained).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        photos = files.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        training, validation = photos.take(trained), photos.skip(trained)
    training = training.cache().shuffle(trained).batch(32).prefetch(tf.data.AUTOTUNE)
    validation = validation.batch(32).prefetch(tf.data.AUTOTUNE)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 48, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(24, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(training, validation_data=validation, epochs=16, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
