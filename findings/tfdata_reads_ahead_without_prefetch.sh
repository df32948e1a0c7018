#!/usr/bin/env bash
# tensorflow 2.21.0: `map(python_function).batch(8)` with no `prefetch` and no parallel calls, one batch taken.
# Guess: eight elements were made, and the next eight when they are asked for. Seen: sixteen or twenty-four: both stages are made
# one that works a batch ahead, and a prefetch is put behind it, so that adding one, as is often advised, changes little.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
cat > program.py <<'PY'
import time
import tensorflow as tf

def made(optimized):
    elements = []
    def make(element):
        elements.append(int(element))
        return element
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = optimized
    data = tf.data.Dataset.range(1000).map(lambda x: tf.numpy_function(make, [x], tf.int64)).batch(8)
    iterator = iter(data.with_options(options))
    next(iterator)
    before = 0
    while before < len(elements):
        before = len(elements)
        time.sleep(3)
    return before

by_itself, as_written = made(True), made(False)
print(tf.__version__, "elements made for the first batch of 8:", by_itself, "without tf.data's own changes:", as_written)
assert by_itself in (16, 24) and as_written == 8
PY
TF_CPP_MIN_LOG_LEVEL=3 "$folder/env/bin/python" -W ignore program.py
