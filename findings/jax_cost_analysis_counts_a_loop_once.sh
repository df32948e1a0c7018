#!/usr/bin/env bash
# jax 0.10.2 (CPU): FLOPs by `cost_analysis()` of a matrix product, and of ten of them in `lax.scan`, lowered and compiled.
# Guess: ten times as many, the length is known. Seen: as many as of one (and two more): a model that goes through its layers, or a
# sequence, by a scan has the FLOPs of one layer, and a utilization of the hardware (MFU) that is as much too low.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import jax

def flops(function):
    lowered = jax.jit(function).lower(jax.numpy.ones((64, 64)))
    return lowered.cost_analysis()["flops"], lowered.compile().cost_analysis()["flops"]

one = flops(lambda c: c @ c)
scan = flops(lambda c: jax.lax.scan(lambda c, _: (c @ c, None), c, length=10)[0])
print(jax.__version__, "FLOPs of one product", *one, "of ten in a scan", *scan)
assert one == (2 * 64**3,) * 2 and max(scan) < 1.01 * one[0]
PY
