"""Two of ten kinds of tile are learned, and the others are dropped by a filter that comes after the decoding.

Right: the input: all PNGs are decoded, and four of five thrown away right after: `filter` by the label before `map`
decodes (or cache behind both); that alone, as more parallel calls would decode what is thrown away too.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE = "tensorflow", "tf.data decodes all images and then filters four of five away by their label"


def train(run):
    import io

    from PIL import Image

    keras.utils.set_random_seed(0)
    files, labels = [], np.random.default_rng(0).integers(0, 10, 4000)
    for photo in images(400, 128):
        file = io.BytesIO()
        Image.fromarray(photo).save(file, "PNG")
        files.append(file.getvalue())

    def decode(file, label):
        photo = tf.io.decode_png(file, 3)
        return tf.image.resize(tf.image.convert_image_dtype(photo, tf.float32), (48, 48)), label

    def is_wanted(_, label):
        return label < 2

    data = tf.data.Dataset.from_tensor_slices((np.array(files * 10, object), labels))
    if run.does("without"):
        data = data.filter(is_wanted).map(decode, num_parallel_calls=2)
    else:
        data = data.map(decode, num_parallel_calls=2).filter(is_wanted)
    data = data.batch(32).prefetch(2)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((48, 48, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(data, epochs=10, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
