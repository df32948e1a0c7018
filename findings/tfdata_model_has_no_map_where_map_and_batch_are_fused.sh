#!/usr/bin/env bash
# tensorflow 2.21.0: the stages that a pipeline's own model names (`IteratorGetModelProto`).
# Guess: range, map, batch and prefetch. Seen: MapAndBatch stands for both: the time of a slow function and that of
# stacking are one number, and no stage is called Map.
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
data = tf.data.Dataset.range(1000).map(lambda i: tf.cast(i, tf.float32) * 2, num_parallel_calls=4).batch(8).prefetch(2)
iterator = iter(data)
for _ in range(20):
    next(iterator)
proto = tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource).numpy()
names = sorted(node.name for node in model_pb2.ModelProto.FromString(proto).nodes.values())
print(tf.__version__, names)
assert names == ["MapAndBatch", "Prefetch", "Range", "Root"]
PY
