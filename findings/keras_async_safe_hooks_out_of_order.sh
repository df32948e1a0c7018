#!/usr/bin/env bash
# keras 3.15.1 on JAX: batch hooks of a callback with `async_safe = True`.
# Guess: one thread runs them after the steps, in order. Seen: several threads run the hooks of one callback at the same
# time, so that a later batch's may end before an earlier one's; a callback that keeps state needs a lock.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import threading, time
import keras, numpy as np
lock, ended, inside, most = threading.Lock(), [], 0, 0

class Slow(keras.callbacks.Callback):
    async_safe = True
    def on_train_batch_end(self, batch, logs=None):
        global inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.2 if batch % 2 else 0.001)
        with lock:
            inside -= 1
            ended.append(batch)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((80, 2), "float32"), np.ones((80, 1), "float32")
model.fit(x, y, batch_size=4, verbose=0, callbacks=[Slow()])
print(keras.__version__, "hooks at once", most, "batches in the order of their hooks' ends", ended)
assert most > 1 and ended != sorted(ended) and sorted(ended) == list(range(20))
PY
