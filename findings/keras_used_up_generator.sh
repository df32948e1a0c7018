#!/usr/bin/env bash
# keras 3.15.1 (JAX; TensorFlow and PyTorch alike): a generator that is used up is not the end of `fit`.
# Guess: later epochs have no steps, or raise. Seen: each later epoch trains on two batches, again those that the
# first epoch began with, and one warning is printed. Steps by epoch: 10, 2, 2, 2; batches drawn: 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras, numpy as np
steps, trained, drawn = [], [], []

class Count(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        steps.append(0)
    def on_train_batch_end(self, batch, logs=None):
        steps[-1] += 1

def batches():
    for number in range(10):
        drawn.append(number)
        yield np.full((4, 2), number, "float32"), np.zeros((4, 1), "float32")

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), epochs=4, verbose=0, callbacks=[Count()])
print(keras.__version__, "steps by epoch", steps, "batches drawn", len(drawn))
assert steps == [10, 2, 2, 2] and len(drawn) == 10
PY
