#!/usr/bin/env bash
# tensorflow 2.21.0: `map` without `num_parallel_calls`, of a function of TensorFlow's and of Python (`tf.numpy_function`).
# Guess: one call at a time, as the argument is None. Seen: tf.data runs the first in parallel by itself (its model has
# ParallelMap); Python's stays one at a time unless `stateful=False`: the argument, often advised, changes nothing for the first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from tensorflow.core.framework import model_pb2

def stage(function):
    iterator = iter(tf.data.Dataset.range(100).map(function))
    for _ in range(20):
        next(iterator)
    proto = tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource).numpy()
    names = {node.name for node in model_pb2.ModelProto.FromString(proto).nodes.values()}
    return next(name for name in sorted(names) if "Map" in name)

def python(stateful):
    return lambda value: tf.numpy_function(lambda number: number, [value], tf.int64, stateful=stateful)

seen = stage(lambda value: value * 2), stage(python(True)), stage(python(False))
print(tf.__version__, "the stage of TensorFlow's, of Python's, of Python's without state:", *seen)
assert seen == ("ParallelMapV2", "Map", "ParallelMapV2")
PY
