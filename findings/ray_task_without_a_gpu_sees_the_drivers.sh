#!/usr/bin/env bash
# ray 2.60.0: `CUDA_VISIBLE_DEVICES` in tasks of a cluster with two GPUs (declared; none is needed).
# Guess: empty for a task that asked for none. Seen: the driver's own "0,1": such a task may take a GPU that another has been
# given, and who counts GPUs by this variable counts two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check ray==2.60.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
import ray
ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")

def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_gpu_ids()

none, given = (ray.get(ray.remote(num_gpus=gpus)(visible).remote()) for gpus in (0, 1))
print(ray.__version__, "asked for none:", *none, "for one:", *given)
assert none[0] == "0,1" and list(none[1]) == [] and len(given[0]) == 1
ray.shutdown()
PY
