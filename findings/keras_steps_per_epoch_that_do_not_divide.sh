#!/usr/bin/env bash
# keras 3.15.1 (JAX; TensorFlow and PyTorch alike): `steps_per_epoch=4` over arrays of 10 batches.
# Guess: each epoch has 4 steps, the third of them continued from the start of the data. Seen: 4, 4, 2, 4, 4: the epoch in
# which the data end is cut short, and the next one starts anew; whoever divides by steps_per_epoch is wrong there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras, numpy as np
steps = []

class Count(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        steps.append(0)
    def on_train_batch_end(self, batch, logs=None):
        steps[-1] += 1

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((20, 2), "float32"), np.ones((20, 1), "float32")
model.fit(x, y, batch_size=2, steps_per_epoch=4, epochs=5, verbose=0, callbacks=[Count()])
print(keras.__version__, "steps by epoch", steps)
assert steps == [4, 4, 2, 4, 4]
PY
