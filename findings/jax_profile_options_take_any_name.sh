#!/usr/bin/env bash
# jax 0.10.2: a profiler option of a name that does not exist.
# Guess: AttributeError. Seen: it is taken without a word, so that an option with a slip in its name, or of another version, is
# off and nobody learns it. (jax 0.12.0.1 raises.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import jax
options = jax.profiler.ProfileOptions()
try:
    options.host_tracer_levle = 3
    outcome = "taken"
except AttributeError:
    outcome = "refused"
print(jax.__version__, outcome)
assert outcome == "taken"
PY
