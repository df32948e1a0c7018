#!/usr/bin/env bash
# tensorflow 2.21.0 on two cores: `interleave` with and without `num_parallel_calls=tf.data.AUTOTUNE`, no `cycle_length`.
# Guess: with it, more files are read at a time. Seen: without it, two in turns, as there are cores; with it, one after the
# other, cores / 3 rounded up: nothing is mixed, and each file is waited for. `num_parallel_reads` is alike.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
if len(os.sched_getaffinity(0)) < 2:
    raise SystemExit("this needs two cores")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

def order(**options):
    files = tf.data.Dataset.range(6).interleave(lambda file: tf.data.Dataset.from_tensors(file).repeat(3), **options)
    return [int(file) for file in files.take(6)]

by_itself, tuned = order(), order(num_parallel_calls=tf.data.AUTOTUNE)
given = order(cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
names = [f"{file}.tfrecord" for file in range(6)]
for file, name in enumerate(names):
    with tf.io.TFRecordWriter(name) as writer:
        for _ in range(3):
            writer.write(str(file).encode())
reader = tf.data.TFRecordDataset(names, num_parallel_reads=tf.data.AUTOTUNE)
records = [int(file) for file in reader.take(6).as_numpy_iterator()]
print(tf.__version__, "files read: by itself", by_itself, "AUTOTUNE", tuned, records, "with cycle_length=4", given)
assert by_itself == [0, 1, 0, 1, 0, 1] and tuned == records == [0, 0, 0, 1, 1, 1] and given == [0, 1, 2, 3, 0, 1]
PY
