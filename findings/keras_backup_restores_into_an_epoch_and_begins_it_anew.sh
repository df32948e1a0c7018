#!/usr/bin/env bash
# keras 3.15.1 on JAX (TensorFlow, PyTorch alike): `BackupAndRestore(save_freq=3)`, stopped in the second epoch, and run again.
# Guess: `fit` goes on at the batch of the backup. Seen: the weights are those of batch 5 of the epoch, but its batches begin
# at 0: five of them are trained on twice, and three epochs of ten batches end with 35 iterations.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras
import numpy as np

class Stop(Exception):
    pass

class Watch(keras.callbacks.Callback):
    def __init__(self, last):
        super().__init__()
        self.last = last
        self.batches = []
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        self.batches.append((self.epoch, batch))
    def on_train_batch_end(self, batch, logs=None):
        if len(self.batches) == self.last:
            raise Stop

def fit(last):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = Watch(last)
    backup = keras.callbacks.BackupAndRestore("backup", save_freq=3)
    try:
        model.fit(np.ones((40, 2)), np.ones(40), batch_size=4, epochs=3, verbose=0, callbacks=[backup, watch])
    except Stop:
        pass
    return watch.batches, int(model.optimizer.iterations)

before, _ = fit(last=17)
after, iterations = fit(last=None)
print(keras.__version__, "stopped after", before[-1], "went on with", after[0], "iterations in the end", iterations)
assert before[-1] == (1, 6) and after[0] == (1, 0) and iterations == 35
PY
