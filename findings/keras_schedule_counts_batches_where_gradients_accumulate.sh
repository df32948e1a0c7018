#!/usr/bin/env bash
# keras 3.15.1 on JAX (TensorFlow, PyTorch alike): a schedule with `gradient_accumulation_steps=4`, after ten batches.
# Guess: it is asked for the learning rate of update 2, as `optimizer.iterations` is 2. Seen: of step 10: a schedule counts
# batches and `iterations` updates, so that a decay over the planned updates is over after a quarter of the training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check keras==3.15.1 jax==0.10.2
cd "$folder"
KERAS_BACKEND=jax "$folder/env/bin/python" -W ignore - <<'PY'
import keras
import numpy as np

class Step(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return step

model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(Step(), gradient_accumulation_steps=4), "mse")
model.fit(np.zeros((40, 2)), np.zeros(40), batch_size=4, verbose=0)
iterations, asked = int(model.optimizer.iterations), int(model.optimizer.learning_rate)
print(keras.__version__, "batches 10, iterations", iterations, "step of the schedule", asked)
assert (iterations, asked) == (2, 10)
PY
