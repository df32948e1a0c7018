#!/usr/bin/env bash
# jax 0.10.2 (four CPU devices): FLOPs by `cost_analysis()` of a product whose rows are shared out among four devices.
# Guess: the same before and after it is compiled, those of the whole. Seen: the whole's when lowered, a quarter once compiled,
# those of one device: who divides them by all devices' peak finds a quarter of the utilization.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2
cd "$folder"
XLA_FLAGS=--xla_force_host_platform_device_count=4 "$folder/env/bin/python" -W ignore - <<'PY'
import jax
from jax.sharding import NamedSharding, PartitionSpec
shared_out = NamedSharding(jax.make_mesh((4,), ("batch",)), PartitionSpec("batch"))
rows = jax.device_put(jax.numpy.ones((64, 64)), shared_out)
lowered = jax.jit(lambda rows, weights: rows @ weights).lower(rows, jax.numpy.ones((64, 64)))
whole, compiled = lowered.cost_analysis()["flops"], lowered.compile().cost_analysis()["flops"]
print(jax.__version__, jax.device_count(), "devices, FLOPs lowered", whole, "compiled", compiled)
assert compiled == 2 * 64**3 / 4 and round(whole / compiled, 2) == 4
PY
