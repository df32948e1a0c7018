#!/usr/bin/env bash
# jax 0.10.2: events of `jax.monitoring` where the persistent compilation cache is on, in two processes one after the other.
# Guess: `backend_compile_duration` means that XLA compiled; misses and hits add up to the programs. Seen: it comes for a
# program from the cache as well, and one that compiles in less than the time from which they are stored is neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
cat > program.py <<'PY'
import collections, json, sys
import jax
import jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", float(sys.argv[2]))
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rsplit("/", 1)[1]]))
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.update([name.rsplit("/", 1)[1]]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print(json.dumps([events[name] for name in ("backend_compile_duration", "cache_misses", "cache_hits")]))
PY
"$folder/env/bin/python" -W ignore - <<'PY'
import json, subprocess, sys
import jax

def seen(folder, least_s):
    output = subprocess.run([sys.executable, "program.py", folder, least_s], capture_output=True, check=True, text=True).stdout
    return tuple(json.loads(output))

stored, again, quick = seen("cache", "0"), seen("cache", "0"), seen("other", "60")
print(jax.__version__, "compile events, misses, hits:", stored, "again:", again, "too quick to be stored:", quick)
programs = stored[0]
assert programs > 0 and stored == (programs, programs, 0)
assert again == (programs, 0, programs) and quick == (programs, 0, 0)
PY
