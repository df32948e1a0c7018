#!/usr/bin/env bash
# tensorflow 2.21.0: when `shuffle(100)` fills its buffer, with `repeat()` behind it and without.
# Guess: as each epoch begins, in both cases. Seen: `shuffle(100).repeat(3)` fills it once, in the first epoch, as the two become
# one stage, and no epoch has another's elements; three passes fill it three times.
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
read = []

def elements():
    for number in range(300):
        read.append(number)
        yield number

data = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec((), tf.int64))

def fills(passes):
    read.clear()
    taken, before, bursts = [], 0, []
    for data in passes:
        for value in data:
            if len(read) - before >= 60:
                bursts.append(len(taken))
            before = len(read)
            taken.append(int(value))
    assert all(sorted(taken[first : first + 300]) == list(range(300)) for first in (0, 300, 600))
    return bursts

repeated = fills([data.shuffle(100).repeat(3)])
passes = fills([data.shuffle(100)] * 3)
print(tf.__version__, "elements taken when it filled: shuffle.repeat", repeated, "three passes", passes)
assert repeated == [0] and passes == [0, 300, 600]
PY
