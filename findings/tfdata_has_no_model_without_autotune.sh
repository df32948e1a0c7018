#!/usr/bin/env bash
# tensorflow 2.21.0: a pipeline's model where `options.autotune.enabled` is False.
# Guess: a model with the parallelism that was written. Seen: NotFoundError: how long each stage takes is measured by the
# autotuner alone, so whoever switches it off cannot ask.
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
options = tf.data.Options()
options.autotune.enabled = False
data = tf.data.Dataset.range(1000).map(lambda i: i * 2, num_parallel_calls=4).batch(8).with_options(options)
iterator = iter(data)
next(iterator)
try:
    tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource)
    outcome = "a model"
except tf.errors.NotFoundError:
    outcome = "NotFoundError"
print(tf.__version__, outcome)
assert outcome == "NotFoundError"
PY
