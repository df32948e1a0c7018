#!/usr/bin/env bash
# keras 3.15.1 (JAX, TensorFlow alike): `steps_per_execution=4` over 10 batches.
# Guess: the hooks of the last execution name batches 8 and 9. Seen: on_train_batch_end gets 11, a batch that does not
# exist; the optimizer counts 10 steps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras, numpy as np
begun, ended = [], []

class Note(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        begun.append(batch)
    def on_train_batch_end(self, batch, logs=None):
        ended.append(batch)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=4)
x, y = np.ones((20, 2), "float32"), np.ones((20, 1), "float32")
model.fit(x, y, batch_size=2, verbose=0, callbacks=[Note()])
print(keras.__version__, "begun", begun, "ended", ended, "iterations", int(model.optimizer.iterations))
assert begun == [0, 4, 8] and ended == [3, 7, 11] and int(model.optimizer.iterations) == 10
PY
