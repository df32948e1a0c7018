#!/usr/bin/env bash
# jax 0.10.2 (CPU; 0.12.0.1 alike): the thread that runs the Python function of a `pure_callback` in a jitted call.
# Guess: always one of XLA's own. Seen: the thread that made the call, where its arguments are ready; another, which
# Python did not start, where they are still computed: what a function keeps by thread is not always there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import threading
import jax, jax.numpy as jnp, numpy as np
threads = []

def on_host(x):
    threads.append("own" if threading.current_thread() is threading.main_thread() else "another")
    return np.asarray(x)

computed = jax.jit(lambda x: jnp.linalg.matrix_power(x, 60))
called = jax.jit(lambda x: jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
x = jnp.ones((700, 700))
called(computed(x)).block_until_ready()
threads.clear()
for _ in range(4):
    called(x).block_until_ready()
ready = list(threads)
threads.clear()
for _ in range(4):
    called(computed(x)).block_until_ready()
print(jax.__version__, "arguments ready", ready, "still computed", threads)
assert set(ready) == {"own"} and set(threads) == {"another"}
PY
