#!/usr/bin/env bash
# keras 3.15.1 on JAX and on PyTorch: items of a PyDataset read at `on_train_batch_begin` and `on_train_batch_end`.
# Guess: a batch is fetched before its hook begins, on both. Seen: on PyTorch before, on JAX (and TensorFlow) between the hooks: a
# callback that times from begin to end has the wait for input in its steps on one, and between its steps on the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2 torch==2.13.0
cd "$folder"
cat > program.py <<'PY'
import keras
import numpy as np
read = []

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        read.append(index)
        return np.ones((4, 2)), np.ones(4)

class Hooks(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        before.append(len(read))
    def on_train_batch_end(self, batch, logs=None):
        within.append(len(read) - before[-1])

before, within = [], []
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Data(), verbose=0, callbacks=[Hooks()])
between = np.diff(before) - within[:-1]
print(keras.__version__, keras.backend.backend(), "read within hooks", within, "between them", between.tolist())
assert (set(within), set(between)) == (({1}, {0}) if keras.backend.backend() == "jax" else ({0}, {1}))
PY
for backend in jax torch; do
    KERAS_BACKEND=$backend "$folder/env/bin/python" -W ignore program.py
done
