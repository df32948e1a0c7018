"""Photos of eight unequal classes, drawn in equal parts: one data set per class, made by `filter` from the data set
of all decoded photos, and `sample_from_datasets` (omoindrot/tensorflow-triplet-loss#7).

Right: the input: each of the eight branches decodes (`map(decode)`) all photos and `filter` throws away those of
other classes, so that about eight are decoded for one that is used: filter by label before the decoding, or split the
files by label beforehand; not only a larger prefetch or more parallel calls, and not the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE = "tensorflow", "each class's branch of sample_from_datasets decodes all photos and filters its own"


def train(run):
    keras.utils.set_random_seed(0)
    photos = [tf.io.encode_jpeg(photo).numpy() for photo in images(480, 192)]
    labels = np.random.default_rng(0).choice(8, 480, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05])
    files = tf.data.Dataset.from_tensor_slices((photos, labels))

    def decode(photo, label):
        photo = tf.image.decode_jpeg(photo, channels=3)
        return tf.image.random_flip_left_right(tf.image.resize(photo, (64, 64)) / 255), label

    def only(chosen, data):
        return data.filter(lambda photo, label: label == chosen)

    if run.does("without"):
        classes = [only(chosen, files).shuffle(64).map(decode, tf.data.AUTOTUNE).repeat() for chosen in range(8)]
    else:
        decoded = files.map(decode, tf.data.AUTOTUNE)
        classes = [only(chosen, decoded).shuffle(64).repeat() for chosen in range(8)]
    balanced = tf.data.Dataset.sample_from_datasets(classes, [1 / 8] * 8, seed=0).batch(32).prefetch(tf.data.AUTOTUNE)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(8),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(balanced, steps_per_epoch=30, epochs=3, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
