#!/usr/bin/env bash
# tensorflow 2.21.0 on two cores: `map(..., num_parallel_calls=8)` of a Python function that waits (for a file, a server).
# Guess: eight calls wait at a time, as waiting takes no core. Seen: two, as tf.data's threads are as many as the cores;
# `options.threading.private_threadpool_size = 8` lets eight wait. The number in the program is no more than an upper limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
cat > program.py <<'PY'
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
if len(os.sched_getaffinity(0)) < 2:
    raise SystemExit("this needs two cores")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import threading, time
import tensorflow as tf
lock, waiting, most = threading.Lock(), [0], [0]

def wait(element):
    with lock:
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
    time.sleep(0.05)
    with lock:
        waiting[0] -= 1
    return element

def at_a_time(threads):
    most[0] = 0
    data = tf.data.Dataset.range(24).map(lambda x: tf.numpy_function(wait, [x], tf.int64), num_parallel_calls=8)
    options = tf.data.Options()
    if threads:
        options.threading.private_threadpool_size = threads
    list(data.with_options(options))
    return most[0]

by_itself, pool = at_a_time(None), at_a_time(8)
print(tf.__version__, "two cores, num_parallel_calls=8, waiting at a time:", by_itself, "with a pool of eight threads:", pool)
assert by_itself == 2 and pool == 8
PY
"$folder/env/bin/python" -W ignore program.py
