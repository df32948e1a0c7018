#!/usr/bin/env bash
# keras 3.15.1 on JAX (PyTorch alike) with grain 0.2.18: `fit` of three epochs over a MapDataset of 20 elements.
# Guess: 60 elements are read, a few more to learn the shapes. Seen: 100. Keras takes a batch twice before the first epoch, and
# each time Grain reads on into its buffer of 500: the whole of a small set, or 1,000 elements of a large one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2 grain==0.2.18
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import time
import grain, keras, numpy as np
read, before = [], []

class Source:
    def __len__(self):
        return 20
    def __getitem__(self, index):
        read.append(index)
        return np.ones(2, "float32"), np.ones(1, "float32")

class Look(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        deadline = time.monotonic() + 60
        while len(read) < 40 and time.monotonic() < deadline:
            time.sleep(0.1)
        before.append(len(read))

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(grain.MapDataset.source(Source()).batch(2), epochs=3, verbose=0, callbacks=[Look()])
print(keras.__version__, grain.__version__, "elements read before the first epoch", before, "in all", len(read))
assert before == [40] and len(read) == 100
PY
