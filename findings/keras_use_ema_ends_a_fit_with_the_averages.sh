#!/usr/bin/env bash
# keras 3.15.1 on PyTorch (TensorFlow alike): `use_ema=True` without a callback, one fit of two epochs and two of one.
# Guess: the averages are kept beside the weights until `SwapEMAWeights` is used, so both train alike. Seen: each fit ends by
# putting them in place of the weights: the model was never validated with them, and a short fit first (to warm up, to take a
# profile) changes the training that follows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 torch==2.13.0
cd "$folder"
KERAS_BACKEND=torch "$folder/env/bin/python" -W ignore - <<'PY'
import keras
import numpy as np

class Weights(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(float(self.model.get_weights()[0][0, 0]))

def train(*epochs):
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.01, use_ema=True), "mse")
    for count in epochs:
        model.fit(np.ones((40, 1)), np.ones(40), batch_size=4, verbose=0, epochs=count, callbacks=[Weights()])
    return round(float(model.get_weights()[0][0, 0]), 4)

seen = []
one = train(2)
last = round(seen[-1], 4)
two = train(1, 1)
print(keras.__version__, "weight as the last epoch ends", last, "after the fit", one, "after two fits", two)
assert one < last and two < one
PY
