"""Photos whose files are kept in memory by a `cache` that somebody put right behind the reading, ahead of the decoding
(the disk was thought to be slow).

Right: the input: all JPEGs are decoded and scaled again in each epoch, since `cache` stands ahead of `map(decode)`:
move it behind the decoding (or write smaller files once). More parallel calls alone are not enough, as both cores
decode already.
"""

from gauntlet.blind import main
from gauntlet.helpers import jpegs, keras, tf

BACKEND, CAUSE = "tensorflow", "cache stands ahead of map, so that each epoch decodes all JPEGs again"


def train(run):
    keras.utils.set_random_seed(0)

    def read(path):
        return tf.io.read_file(path), tf.strings.regex_full_match(path, ".*/b/.*")

    def decode(file, label):
        return tf.image.resize(tf.io.decode_jpeg(file, 3), (64, 64)) / 255, label

    data = tf.data.Dataset.list_files(str(jpegs() / "*" / "*.jpg"), shuffle=False).map(read)
    if run.does("without"):
        data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()
    else:
        data = data.cache().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.shuffle(160).batch(16).prefetch(tf.data.AUTOTUNE)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(8, 3, 2, activation="relu"),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(data, epochs=12, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
