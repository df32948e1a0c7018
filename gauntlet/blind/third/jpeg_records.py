"""A TFRecord file of JPEG images, decoded and scaled one after another in each epoch, nothing ahead of time (the first
answer to many a "tf.data is slow" question).

Right: the input: decoding and resizing in a sequential `map`, again in each epoch: `cache()` after the `map` (the
small images fit in memory), or small images in the records; `num_parallel_calls=` and `prefetch` as far as there are
cores.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, records, tf

BACKEND, CAUSE, USES = "tensorflow", "JPEGs are decoded in a sequential map in each epoch, without prefetch", "run"


def parse(record):
    image = tf.io.decode_jpeg(record, channels=3)
    image = tf.image.resize(image, (64, 64), antialias=True) / 255
    return image, tf.cast(image[0, 0, 0] > 0.5, tf.int32)


def train(run):
    data = tf.data.TFRecordDataset(records()).map(parse)
    if run.does("without"):
        x, y = next(iter(data.batch(320)))
        data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shuffle(64).batch(16)
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    run.start()
    model.fit(data, epochs=16, verbose=0)


if __name__ == "__main__":
    main(train)
