#!/usr/bin/env bash
# keras 3.15.1 (JAX; TensorFlow and PyTorch alike): `PyDataset.on_epoch_end` of a fit of three epochs.
# Guess: it is called three times, after each epoch. Seen: four times, once before anything is trained on: a dataset that
# shuffles or counts there is one ahead. `on_epoch_begin` is called three times, four where Keras has to build the model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras, numpy as np
calls = []

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        calls.append("item")
        return np.ones((2, 2), "float32"), np.ones((2, 1), "float32")
    def on_epoch_begin(self):
        calls.append("begin")
    def on_epoch_end(self):
        calls.append("end")

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for workers, begins in ((1, 4), (1, 3), (2, 3)):
    calls.clear()
    model.fit(Data(workers=workers), epochs=3, verbose=0)
    print(keras.__version__, "workers", workers, *calls)
    assert calls.count("begin") == begins and calls.count("end") == 4
    assert calls[-3 * 5 - 1] == "end"  # before three times begin, item, item, item, end
PY
