"""Images: files, TFRecords, directories, augmentation, arrays."""

from __future__ import annotations

from gauntlet.helpers import convnet, images, jpegs, keras, np, records, shards, tf
from gauntlet.registry import INPUT, program

PARALLEL, CACHE = r"\.map\([^\n]*num_parallel_calls=(\d+)?", r"\.cache\(\)"
UNTUNED = r"autotune\.enabled = False"


def untuned(data):
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def decode(data):
    return tf.image.resize(tf.io.decode_jpeg(data, channels=3), (64, 64)) / 255.0


def load_image(path):
    label = tf.where(tf.strings.split(path, "/")[-2] == "a", 0, 1)
    return decode(tf.io.read_file(path)), label


@program(
    "JPEG files are decoded again in every epoch, one at a time",
    "input",
    INPUT,
    cures={"cached": CACHE, "parallel": PARALLEL},
)
def image_files(run):
    data = tf.data.Dataset.list_files(f"{jpegs()}/*/*.jpg", shuffle=False)
    calls = tf.data.AUTOTUNE if run.does("parallel") else None
    data = data.map(load_image, num_parallel_calls=calls)
    if run.does("cached"):
        data = data.cache()
    data = data.batch(8)
    model = convnet(64)
    model.fit(data, epochs=12, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "a directory is decoded again in every epoch, on all cores; autotuning holds up the end of each epoch's iterator",
    "input",
    r"\Ainput_bound",
    cures={"cached": CACHE, "untuned": UNTUNED},
)
def image_directory(run):
    data = keras.utils.image_dataset_from_directory(
        str(jpegs()), image_size=(64, 64), batch_size=8, seed=1, verbose=False
    )
    if run.does("cached"):
        data = data.cache().shuffle(data.cardinality(), seed=1)
    if run.does("untuned"):
        data = untuned(data)
    model = convnet(64, 8, keras.layers.Rescaling(1 / 255))
    model.fit(data, epochs=12, verbose=0, callbacks=run.callbacks)
    return model


@program("nothing but the first epoch, which fills the cache", "model", "input_bound", nothing=True)
def image_directory_cached(run):
    data = keras.utils.image_dataset_from_directory(
        str(jpegs()), image_size=(64, 64), batch_size=8, seed=1, verbose=False
    )
    data = data.cache().shuffle(200, seed=1).prefetch(tf.data.AUTOTUNE)
    model = convnet(64, 48, keras.layers.Rescaling(1 / 255))
    model.fit(data, epochs=15, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "JPEG images in one TFRecord file are decoded again in every epoch, one at a time",
    "input",
    INPUT,
    cures={"cached": CACHE, "parallel": PARALLEL},
    harmful="num_parallel_reads",
)
def tfrecord_jpeg(run):
    calls = tf.data.AUTOTUNE if run.does("parallel") else None
    data = tf.data.TFRecordDataset(records())
    data = data.map(lambda record: (decode(record), 1), num_parallel_calls=calls)
    if run.does("cached"):
        data = data.cache()
    data = data.shuffle(64, seed=1).batch(8).prefetch(tf.data.AUTOTUNE)
    model = convnet(64)
    model.fit(data, epochs=12, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "compressed TFRecord files are parsed again in every epoch, and a shuffle takes in 1000 records before its first",
    "without:cached",
    INPUT,
    cures={"cached": CACHE, "repeated": r"\.repeat\(\)\.shuffle"},
    harmful=UNTUNED,
)
def tfrecord_shards(run):
    def parse(record):
        image = tf.reshape(tf.io.decode_raw(record, tf.uint8), (64, 64, 3))
        return tf.image.resize(tf.cast(image, tf.float32) / 255.0, (48, 48)), 1

    names = tf.data.Dataset.list_files(shards(), seed=1)
    data = names.interleave(lambda name: tf.data.TFRecordDataset(name, "GZIP")).map(parse)
    if run.does("cached"):
        data = data.cache()
    if run.does("repeated"):
        data = data.repeat()
    data = data.shuffle(1000, seed=1).batch(32)
    model = convnet(48, 8)
    model.fit(data, epochs=15, steps_per_epoch=75 if run.does("repeated") else None, verbose=0, callbacks=run.callbacks)
    return model


def augment(image, label):
    image = tf.image.random_flip_left_right(tf.image.convert_image_dtype(image, tf.float32))
    image = tf.image.random_crop(tf.image.resize(image, (320, 320), "bicubic"), (256, 256, 3))
    return tf.image.resize(tf.image.random_hue(image, 0.1), (64, 64)), label


@program("random augmentation in one thread", "input", INPUT, cures={"parallel": PARALLEL}, harmful=CACHE)
def random_augmentation(run):
    data = tf.data.Dataset.from_tensor_slices((images(640, 64), np.arange(640) % 2))
    calls = tf.data.AUTOTUNE if run.does("parallel") else None
    data = data.shuffle(640, seed=1).map(augment, num_parallel_calls=calls)
    model = convnet(64)
    model.fit(data.batch(8).prefetch(2), epochs=6, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "random augmentation on all cores already; autotuning holds up the end of each epoch's iterator",
    "input",
    r"\Ainput_bound",
    cures={"untuned": UNTUNED},
    harmful=f"{CACHE}|{PARALLEL}|workers",
)
def random_augmentation_full(run):
    data = tf.data.Dataset.from_tensor_slices((images(640, 64), np.arange(640) % 2))
    data = data.shuffle(640, seed=1).map(augment, num_parallel_calls=tf.data.AUTOTUNE).batch(8).prefetch(2)
    if run.does("untuned"):
        data = untuned(data)
    model = convnet(64)
    model.fit(data, epochs=8, verbose=0, callbacks=run.callbacks)
    return model


def augment_in_python(image):
    """Shift the rows of an image at random, pixel by pixel."""
    moved = image.tolist()
    for row in moved:
        shift = np.random.randint(8)
        row[:] = row[shift:] + row[:shift]
    return np.asarray(moved, "float32") / 255


@program(
    "random augmentation computes in Python, under its lock",
    "input",
    INPUT,
    cures={"rewritten": r"TensorFlow operations|_tf\b|tf\.image"},
    harmful=rf"{CACHE}|num_parallel_calls=\d|threadpool",
)
def python_augmentation(run):
    def native(image):
        return tf.roll(tf.cast(image, tf.float32) / 255, tf.random.uniform([], 0, 8, tf.int32), 1)

    def python(image):
        return tf.ensure_shape(tf.numpy_function(augment_in_python, [image], tf.float32), (64, 64, 3))

    data = tf.data.Dataset.from_tensor_slices(images(320, 64))
    data = data.map(native if run.does("rewritten") else python)
    data = data.batch(32).map(lambda image: (image, tf.zeros(tf.shape(image)[0])))
    model = convnet(64)
    model.fit(data, epochs=8, verbose=0, callbacks=run.callbacks)
    return model


@program("the model: augmentation layers and convolutions", "model", None)
def augmentation_layers(run):
    data = tf.data.Dataset.from_tensor_slices((images(320, 64), np.arange(320) % 2)).batch(32)
    layers = keras.layers
    random = (layers.RandomFlip(seed=1), layers.RandomRotation(0.1, seed=1))
    model = convnet(64, 16, layers.Rescaling(1 / 255), *random)
    model.fit(data.cache().prefetch(2), epochs=24, verbose=0, callbacks=run.callbacks)
    return model


def _pooled(*first):
    model = keras.Sequential(
        [
            keras.Input((96, 96, 3)),
            *first,
            keras.layers.AveragePooling2D(16),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


@program(
    "images of 0 to 1 are copied out of the arrays, beside a small model",
    "any",
    "input_bound",
    nothing=True,
    harmful="uint8|from_tensor_slices",
)
def arrays_0_to_1(run):
    x = (images(1600, 96) / 255).astype("float32")
    model = _pooled()
    model.fit(x, np.ones(1600), batch_size=64, epochs=24, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "images of 0 to 255 are copied as float32 out of the arrays, beside a small model",
    "any",
    "input_bound",
    nothing=True,
    cures={"bytes": r'astype\("uint8"\)'},
    harmful="from_tensor_slices",
)
def arrays_0_to_255(run):
    x = images(1600, 96).astype("uint8" if run.does("bytes") else "float32")
    model = _pooled(keras.layers.Rescaling(1 / 255))
    model.fit(x, np.ones(1600), batch_size=64, epochs=24, verbose=0, callbacks=run.callbacks)
    return model
