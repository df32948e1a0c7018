#!/usr/bin/env bash
# tensorflow 2.21.0: a loop leaves a dataset after one batch, while its map waits half a second in each call.
# Guess: the iterator that is left ends at once, calls that nobody needs are given up. Seen: Python waits, where the
# iterator goes, until the calls under way have returned; so a loop that breaks, or begins an epoch before the last one
# has ended, stands still for as long as a call or two take.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/env/bin/python" -W ignore - 2> /dev/null <<'PY'
import time
import tensorflow as tf

def waits(x):
    time.sleep(0.5)
    return x

def end_s(calls):
    data = tf.data.Dataset.range(100).map(lambda x: tf.numpy_function(waits, [x], tf.int64), num_parallel_calls=calls)
    batches = iter(data.prefetch(4))
    next(batches)
    time.sleep(0.1)  # the next calls begin
    began = time.perf_counter()
    del batches
    return round(time.perf_counter() - began, 2)

seconds = {str(calls): end_s(calls) for calls in (None, 4)}
print("tensorflow", tf.__version__, "seconds until an iterator that is left has ended, by num_parallel_calls:", seconds)
assert min(seconds.values()) > 0.25
PY
