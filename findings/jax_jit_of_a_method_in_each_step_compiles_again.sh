#!/usr/bin/env bash
# jax 0.10.2: a loop of ten steps that calls jax.jit in each step, of the same function, object or method.
# Guess: none is compiled again, for all are equal each time. Seen: a function and a callable object are compiled once,
# but a method (`jax.jit(trainer.step)`) in every step, as Python makes a new bound method of it each time; so is a
# partial of the same function.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import functools
import jax
import numpy as np

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
)

def doubled(x):
    return 2 * x

class Trainer:
    def step(self, x):
        return 3 * x
    __call__ = step

trainer, x = Trainer(), np.ones(3, "float32")
assert trainer.step == trainer.step
ways = {
    "function": lambda: doubled,
    "object": lambda: trainer,
    "method": lambda: trainer.step,
    "partial": lambda: functools.partial(doubled),
}
counts = {}
for name, make in ways.items():
    compiled.clear()
    for _ in range(10):
        jax.jit(make())(x)
    counts[name] = len(compiled)
print("jax", jax.__version__, "compiled in ten steps:", counts)
assert counts == {"function": 1, "object": 1, "method": 10, "partial": 10}
PY
