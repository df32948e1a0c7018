#!/usr/bin/env bash
# tensorflow 2.21.0: `enable_op_determinism()` and a map of calls that each sleep 50 ms, 8 of them at a time, on 8 threads.
# Guess: calls run at the same time and only their results keep their order, as with `deterministic=True`.
# Seen: with it a Python function (`numpy_function`, `py_function`) has one call at a time, without a word; else eight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0
cat > "$folder/maps.py" <<'PY'
import sys, threading, time
import numpy as np
import tensorflow as tf

at_once, most, lock = 0, {}, threading.Lock()

def slept(name, number):
    global at_once
    with lock:
        at_once += 1
        most[name] = max(most.get(name, 0), at_once)
    time.sleep(0.05)
    with lock:
        at_once -= 1
    return number

tf.keras.utils.set_random_seed(0)
if sys.argv[1] == "determinism":
    tf.config.experimental.enable_op_determinism()
maps = {
    "numpy_function": lambda i: tf.numpy_function(lambda n: slept("numpy_function", n), [i], tf.int64),
    "py_function": lambda i: tf.py_function(lambda n: slept("py_function", n), [i], tf.int64),
}
options = tf.data.Options()
options.threading.private_threadpool_size = 8
for called in maps.values():
    list(tf.data.Dataset.range(16).map(called, num_parallel_calls=8).with_options(options))
print(tf.__version__, sys.argv[1], most)
sequential = sys.argv[1] == "determinism"
assert all((count == 1) == sequential for count in most.values()), most
PY
for mode in plain determinism; do TF_CPP_MIN_LOG_LEVEL=3 "$folder/env/bin/python" "$folder/maps.py" $mode 2> /dev/null; done
