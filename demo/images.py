"""A small image classification task that this demo draws itself: which shape is in the picture?

Nothing is downloaded. The pictures are drawn once with numpy, written as PNG files, and read back
through the pipeline a person would write: list the files, decode, augment, batch, prefetch.
"""

import random
from pathlib import Path

import numpy as np
import tensorflow as tf

SIZE = 48
CLASSES = ("disc", "square", "triangle", "ring")


def draw(folder: Path, count: int, seed: int = 7) -> Path:
    """Draw `count` pictures of noisy shapes as `<class>-<n>.png` into `folder`, once."""
    if len(list(folder.glob("*.png"))) >= count:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    for n in range(count):
        label = n % len(CLASSES)
        cy, cx = rng.uniform(0.35, 0.65, 2) * SIZE
        r = rng.uniform(0.18, 0.32) * SIZE
        distance = np.hypot(y - cy, x - cx)
        inside = (
            distance < r,
            (abs(y - cy) < r) & (abs(x - cx) < r),
            (y - cy < r) & (y - cy > 2 * abs(x - cx) - r),
            (distance < r) & (distance > 0.6 * r),
        )[label]
        colour = rng.uniform(0.4, 1.0, 3)
        picture = rng.normal(0.25, 0.12, (SIZE, SIZE, 3)) + inside[..., None] * colour * 0.7
        png = tf.io.encode_png((picture.clip(0, 1) * 255).astype(np.uint8))
        (folder / f"{CLASSES[label]}-{n:05d}.png").write_bytes(png.numpy())
    return folder


def files(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels of the pictures in `folder`, shuffled the same way every time."""
    paths = sorted(folder.glob("*.png"))
    random.Random(3).shuffle(paths)
    return [str(p) for p in paths], [CLASSES.index(p.name.split("-")[0]) for p in paths]


def load(path: str) -> np.ndarray:
    """One picture, float32 in 0..1, shape (SIZE, SIZE, 3)."""
    return decode(path, 0)[0].numpy()


def decode(path, label):
    """PNG file to a float picture, in TensorFlow's own C++."""
    picture = tf.io.decode_png(tf.io.read_file(path), channels=3)
    return tf.image.convert_image_dtype(picture, tf.float32), label


def augment_in_python(picture, label):
    """What people write when an augmentation is not in tf.image: Python, one picture at a time.

    Each picture holds the interpreter lock while it is worked on, so more threads do not help.
    """

    def jitter(pixels):
        curve = [min(255, int(level * random.uniform(0.8, 1.2))) for level in range(256)]
        levels = (pixels * 255).astype(np.uint8).ravel().tolist()
        changed = [curve[level] for level in levels]
        return np.asarray(changed, np.float32).reshape(pixels.shape) / 255

    picture = tf.numpy_function(jitter, [picture], tf.float32)
    picture.set_shape((SIZE, SIZE, 3))
    return picture, label


def pipeline(folder: Path, batch: int, batches: int) -> tf.data.Dataset:
    """The pipeline as it should be: parallel decode, batch, prefetch."""
    source = tf.data.Dataset.from_tensor_slices(files(folder)).repeat()
    decoded = source.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return decoded.batch(batch, drop_remainder=True).take(batches).prefetch(tf.data.AUTOTUNE)


def slow_pipeline(folder: Path, batch: int, batches: int) -> tf.data.Dataset:
    """The same with an augmentation in Python in front of the batch."""
    source = tf.data.Dataset.from_tensor_slices(files(folder)).repeat()
    decoded = source.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    augmented = decoded.map(augment_in_python, num_parallel_calls=tf.data.AUTOTUNE)
    return augmented.batch(batch, drop_remainder=True).take(batches).prefetch(tf.data.AUTOTUNE)
