#!/usr/bin/env bash
# keras 3.15.1 on PyTorch: how far a PyDataset reads ahead with `max_queue_size=10`.
# Guess: one worker, the default, fills the queue of ten, as two do. Seen: as the first batch begins, one worker has been
# asked for two items, two workers for twelve: only from two workers on is there a queue at all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 torch==2.13.0
cd "$folder"
KERAS_BACKEND=torch "$folder/env/bin/python" -W ignore - <<'PY'
import time
import keras, numpy as np
asked, at_first = [], {}

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        asked.append(index)
        return np.ones((2, 2), "float32"), np.ones((2, 1), "float32")

class Look(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            time.sleep(2)
            at_first[workers] = len(asked)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for workers in (1, 2):
    asked.clear()
    model.fit(Data(workers=workers, max_queue_size=10), verbose=0, callbacks=[Look()])
print(keras.__version__, "items asked for as the first batch begins, by workers", at_first)
assert at_first[1] <= 3 and at_first[2] >= 11
PY
