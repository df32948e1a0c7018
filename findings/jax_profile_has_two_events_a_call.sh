#!/usr/bin/env bash
# jax 0.10.2 (CPU): five calls of a jitted function under `jax.profiler.trace`.
# Guess: five `PjitFunction` events. Seen: ten, one nested in the other of the same name: a sum of their durations counts
# the time twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import collections, glob, gzip, json
import jax, jax.numpy as jnp
double = jax.jit(lambda x: x + x)
x = jnp.ones((64, 64))
double(x).block_until_ready()
jax.profiler.start_trace("logs")
for _ in range(5):
    double(x).block_until_ready()
jax.profiler.stop_trace()
(path,) = glob.glob("logs/plugins/profile/*/*.trace.json.gz")
events = json.load(gzip.open(path))["traceEvents"]
calls = collections.Counter(event["name"] for event in events if "PjitFunction" in event.get("name", ""))
print(jax.__version__, dict(calls))
assert sum(calls.values()) == 10 and len(calls) == 1
PY
