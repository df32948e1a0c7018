#!/usr/bin/env bash
# keras 3.15.1 on JAX: when the batches of an epoch are asked for, with `ModelCheckpoint` (once an epoch) and without.
# Guess: a callback that saves once an epoch leaves the steps alone. Seen: without it all batches are asked for before the
# first steps are computed; with it, or any callback that has a batch hook and no `async_safe = True`, of which Keras has
# none, the host waits for each step before it asks for the next batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import time
import jax
import keras
import numpy as np
asked = []

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        asked.append(time.perf_counter())
        return np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

class Slow(keras.layers.Layer):
    def call(self, x):
        start = jax.numpy.ones((300, 300)) + 0 * x[0, 0]
        return x + 0 * jax.lax.stop_gradient(jax.lax.fori_loop(0, 40, lambda _, c: c @ c / 300, start))[0, 0]

model = keras.Sequential([keras.layers.Input((2,)), Slow(), keras.layers.Dense(1)])
model.compile("sgd", "mse")

def share(*callbacks):
    asked.clear()
    model.fit(Data(), verbose=0, callbacks=list(callbacks))
    return (asked[-1] - asked[0]) / (time.perf_counter() - asked[0])

share()
saves = keras.callbacks.ModelCheckpoint("model.weights.h5", save_weights_only=True)
without, with_it = share(), share(saves)
saves.async_safe = True
safe = share(saves)
print(keras.__version__, "of the epoch until its last batch is asked for:", end=" ")
print(f"without {without:.0%}, with ModelCheckpoint {with_it:.0%}, called async_safe {safe:.0%}")
assert max(without, safe) < 0.5 < 0.7 < with_it
PY
