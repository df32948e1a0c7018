#!/usr/bin/env bash
# tensorflow 2.21.0: a Python function that loops over numbers, called by `tf.numpy_function` in a `map`: defined at the
# top level of the module, or within the mapped function.
# Guess: the same time, as `numpy_function` calls it with arrays of NumPy either way.
# Seen: the one within takes 3 times the CPU time or more (7 times here): AutoGraph rewrites it with the mapped function,
# and each call that it makes goes through `converted_call`; `do_not_convert` around it in there does not help.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0
cat > "$folder/nested.py" <<'PY'
import random, time
import numpy as np
import tensorflow as tf

def outside(pixels):
    curve = [min(255, int(level * random.uniform(0.8, 1.2))) for level in range(256)]
    changed = [curve[level] for level in (pixels * 255).astype(np.uint8).ravel().tolist()]
    return np.asarray(changed, np.float32).reshape(pixels.shape) / 255

def calls_outside(picture):
    return tf.numpy_function(outside, [picture], tf.float32)

def calls_nested(picture):
    def nested(pixels):
        curve = [min(255, int(level * random.uniform(0.8, 1.2))) for level in range(256)]
        changed = [curve[level] for level in (pixels * 255).astype(np.uint8).ravel().tolist()]
        return np.asarray(changed, np.float32).reshape(pixels.shape) / 255
    return tf.numpy_function(nested, [picture], tf.float32)

def calls_kept(picture):
    @tf.autograph.experimental.do_not_convert
    def nested(pixels):
        curve = [min(255, int(level * random.uniform(0.8, 1.2))) for level in range(256)]
        changed = [curve[level] for level in (pixels * 255).astype(np.uint8).ravel().tolist()]
        return np.asarray(changed, np.float32).reshape(pixels.shape) / 255
    return tf.numpy_function(nested, [picture], tf.float32)

pictures = np.random.rand(400, 32, 32, 3).astype("float32")
seconds = {}
for called in (calls_outside, calls_nested, calls_kept) * 3:
    began = time.process_time()
    for _ in tf.data.Dataset.from_tensor_slices(pictures).map(called):
        pass
    took = time.process_time() - began
    seconds[called.__name__] = min(took, seconds.get(called.__name__, took))
print(tf.__version__, {name: round(took, 2) for name, took in seconds.items()})
assert min(seconds["calls_nested"], seconds["calls_kept"]) > 3 * seconds["calls_outside"], seconds
PY
TF_CPP_MIN_LOG_LEVEL=3 "$folder/env/bin/python" "$folder/nested.py" 2> /dev/null
