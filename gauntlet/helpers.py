"""What programs share: frameworks imported on first use, files made at the start, small models."""

from __future__ import annotations

import atexit
import importlib
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


class _Lazy:
    """A module that is imported when it is first used: listing programs needs no framework."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


keras: Any = _Lazy("keras")
tf: Any = _Lazy("tensorflow")
torch: Any = _Lazy("torch")
jax: Any = _Lazy("jax")


@cache
def folder() -> Path:
    """Return a folder that is deleted when the process ends."""
    made = tempfile.TemporaryDirectory(prefix="gauntlet-")
    atexit.register(made.cleanup)
    return Path(made.name)


def images(count: int, size: int) -> np.ndarray:
    """Return smooth random images, uint8."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, size // 8, size // 8, 3)).repeat(8, 1).repeat(8, 2)
    return np.clip(coarse + rng.integers(0, 32, coarse.shape), 0, 255).astype("uint8")


@cache
def jpegs() -> Path:
    """Return a folder with 320 JPEG files in one folder a class: a/, b/."""
    from PIL import Image

    root = folder() / "jpegs"
    for label in "ab":
        (root / label).mkdir(parents=True)
    for i, image in enumerate(images(320, 512)):
        Image.fromarray(image).save(root / "ab"[i % 2] / f"{i:05}.jpg", quality=90)
    return root


@cache
def records() -> str:
    """Return the path of one TFRecord file whose records are JPEG images."""
    path = str(folder() / "images.tfrecord")
    with tf.io.TFRecordWriter(path) as file:
        for name in sorted(jpegs().rglob("*.jpg")):
            file.write(name.read_bytes())
    return path


@cache
def shards() -> str:
    """Return the pattern of four compressed TFRecord files, each of 600 records: the bytes of an image of 64 x 64."""
    data = images(600, 64)
    for shard in range(4):
        with tf.io.TFRecordWriter(str(folder() / f"shard-{shard}.gz"), options="GZIP") as file:
            for image in data:
                file.write(image.tobytes())
    return str(folder() / "shard-*.gz")


def sentences(count: int, words: int = 60) -> list[str]:
    """Return random sentences of a small vocabulary."""
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"word{i}" for i in range(500)])
    return [" ".join(vocabulary[row]) for row in rng.integers(0, 500, (count, words))]


def rows(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 features and a label of 0 or 1."""
    x = np.random.default_rng(0).normal(size=(count, width)).astype("float32")
    return x, (x.sum(1, keepdims=True) > 0).astype("float32")


def gathered(x: np.ndarray, y: np.ndarray, batch_size: int) -> Any:
    """Return shuffled batches of two arrays from a pipeline without autotuning, as the advice prints it."""
    features, labels = tf.constant(x), tf.constant(y)
    numbers = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch(batch_size)
    data = numbers.map(lambda i: (tf.gather(features, i), tf.gather(labels, i)), num_parallel_calls=2)
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.prefetch(2).with_options(options)


def compute(loops: int) -> float:
    """Compute in Python, holding the GIL; 10,000 loops take about half a millisecond."""
    total = 0.0
    for i in range(loops):
        total += i * 0.5
    return total


def sleep_ms(ms: float) -> None:
    """Wait, as for a network."""
    time.sleep(ms / 1000)


def mlp(width: int, units: int = 64, layers: int = 2, outputs: int = 1, **options: Any) -> Any:
    """Return a compiled dense network for `rows`."""
    model = keras.Sequential([keras.Input((width,))])
    for _ in range(layers):
        model.add(keras.layers.Dense(units, activation="relu"))
    model.add(keras.layers.Dense(outputs))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), **options)
    return model


def convnet(size: int, filters: int = 8, *first: Any, **options: Any) -> Any:
    """Return a compiled convolutional network for square images of two classes."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((size, size, 3)),
            *first,
            layers.Conv2D(filters, 3, strides=2, activation="relu"),
            layers.Conv2D(2 * filters, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model
