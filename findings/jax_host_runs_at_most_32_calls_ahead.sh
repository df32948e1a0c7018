#!/usr/bin/env bash
# jax 0.10.2 (CPU): sixty calls of a jitted step of some ms, each on the result of the one before.
# Guess: the host queues all of them at once, as it waits for none. Seen: 32 at most are under way; the next call waits until one
# is done. A timer round the call sees nothing for 32 steps, then the length of a step: an average mixes both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import time
import jax
step = jax.jit(lambda c: jax.lax.fori_loop(0, 40, lambda _, c: c @ c / 300, c))
results = [step(jax.numpy.ones((300, 300))).block_until_ready()]
spent, most = [], 0
for _ in range(60):
    start = time.perf_counter()
    results.append(step(results[-1]))
    spent.append(1e3 * (time.perf_counter() - start))
    most = max(most, sum(not result.is_ready() for result in results))
first, later = sorted(spent[:30])[15], sorted(spent[33:])[13]
print(jax.__version__, "calls under way at most", most, f"a call takes {first:.2f} ms at first, {later:.2f} ms later (medians)")
assert most == 32 and later > 10 * first
PY
