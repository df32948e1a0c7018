"""JPEG files that are decoded in the first epoch only, behind which tf.data keeps them in memory. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: only the first of ten epochs waits for the decoding, and
the cache has seen to the rest.
"""

from gauntlet.blind import main
from gauntlet.helpers import jpegs, keras, tf

BACKEND, CAUSE, NOISE = "tensorflow", "", "the first epoch decodes all files and fills a cache"


def train(run):
    keras.utils.set_random_seed(0)

    def decode(path):
        photo = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), 3), (64, 64)) / 255
        return photo, tf.strings.regex_full_match(path, ".*/b/.*")

    files = tf.data.Dataset.list_files(str(jpegs() / "*" / "*.jpg"), shuffle=False)
    data = files.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()
    if run.does("without"):
        data = tf.data.Dataset.from_tensor_slices(next(iter(data.batch(1000))))
    data = data.shuffle(320).batch(32).map(lambda x, y: (tf.image.random_flip_left_right(x), y)).prefetch(2)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(data, epochs=10, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
