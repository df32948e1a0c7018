#!/usr/bin/env bash
# keras 3.15.1 on JAX (PyTorch alike): a generator of ten batches as validation data, `validation_steps=4`.
# Guess: each validation scores the next four. Seen: batches 0 1 2 3, then 0 1 4 5, 0 1 6 7, 0 1 8 9: the two from which Keras
# has learnt the shapes are put before the rest each time (on TensorFlow one more is lost to each prefetch).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras, numpy as np
scored = []

class Which(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        scored.append([])
    def on_test_batch_end(self, batch, logs=None):
        scored[-1].append(round(logs["loss"] * (batch + 1)) - sum(scored[-1]))

def batches():
    for number in range(10):
        yield np.full((2, 1), number, "float32"), np.zeros((2, 1), "float32")

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(0.0), "mae")
x = np.ones((2, 1), "float32")
model.fit(x, x, epochs=4, verbose=0, validation_data=batches(), validation_steps=4, callbacks=[Which()])
print(keras.__version__, "batches of each validation", scored)
assert scored == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 6, 7], [0, 1, 8, 9]]
PY
