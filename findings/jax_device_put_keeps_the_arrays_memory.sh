#!/usr/bin/env bash
# jax 0.10.2 (CPU): a loader fills one array again for each batch and hands it to `jax.device_put`.
# Guess: a copy, which the next batch leaves alone. Seen: an array that begins at a multiple of 64 bytes is shared, so that each
# batch handed over before changes with it; 16 bytes further it is a copy, and `jnp.array` copies both: chance decides.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import jax
import jax.numpy as jnp
import numpy as np

def buffer(offset):
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + 400].view(np.float32)

def changes(put, offset):
    batch = buffer(offset)
    first = put(batch).block_until_ready()
    batch[:] = 7
    return bool((first == 7).all())

seen = {put.__name__: (changes(put, 0), changes(put, 16)) for put in (jax.device_put, jnp.array)}
print(jax.__version__, "changes with its array, aligned and not:", seen)
assert seen == {"device_put": (True, False), "array": (False, False)}
PY
