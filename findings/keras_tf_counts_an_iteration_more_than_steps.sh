#!/usr/bin/env bash
# keras 3.15.1 on tensorflow 2.21.0: `optimizer.iterations` after an epoch of ten batches from a generator.
# Guess: 10. Seen: 11, the fetch that finds the end counts, too; 10 for arrays, and with `steps_per_execution=4`. The weights
# were updated ten times. A schedule, or a step read from the optimizer, is one ahead more with each epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 tensorflow==2.21.0
cd "$folder"
KERAS_BACKEND=tensorflow "$folder/env/bin/python" -W ignore - <<'PY'
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np

def batches():
    for _ in range(10):
        yield np.ones((2, 2), "float32"), np.zeros((2, 1), "float32")

def iterations(steps_per_execution, **data):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    model.fit(**data, verbose=0)
    return int(model.optimizer.iterations)

arrays = {"x": np.ones((20, 2), "float32"), "y": np.zeros((20, 1), "float32"), "batch_size": 2}
seen = iterations(1, x=batches()), iterations(4, x=batches()), iterations(1, **arrays)
print(keras.__version__, "generator, with steps_per_execution=4, arrays:", *seen)
assert seen == (11, 10, 10)
PY
