#!/usr/bin/env bash
# ray 2.60.0: the niceness of a task's process, and the threads that it is told to compute with.
# Guess: as that of the program that started it. Seen: 15 higher, with `OMP_NUM_THREADS` as many as the CPUs it was given, 1 for an
# actor: beside any other program on the machine a training's input gets about a thirtieth of the time of a core.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check ray==2.60.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import os
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")

def seen():
    return os.nice(0), os.environ.get("OMP_NUM_THREADS")

class Actor:
    def seen(self):
        return seen()

task = ray.get(ray.remote(num_cpus=2)(seen).remote())
actor = ray.get(ray.remote(Actor).remote().seen.remote())
own = os.nice(0)
print(ray.__version__, "niceness of the program", own, "of a task and an actor", task[0], actor[0], "threads", task[1], actor[1])
assert task == (min(19, own + 15), "2") and actor == (min(19, own + 15), "1")
ray.shutdown()
PY
