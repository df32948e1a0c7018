#!/usr/bin/env bash
# torch 2.13.0: `torch.profiler.record_function` in a function that `torch.compile` compiles.
# Guess: its label is in the profile, around the compiled part. Seen: it is left out of the compiled function, with one line in
# the log while it compiles: a step labelled by phases has none of them once it is compiled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import torch

def step(x):
    with torch.profiler.record_function("forward"):
        x = x @ x
    with torch.profiler.record_function("loss"):
        return x.sum()

def labels(function):
    x = torch.ones(8, 8)
    function(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(x)
    return sorted({event.key for event in profile.key_averages()} & {"forward", "loss"})

seen = labels(step), labels(torch.compile(step, backend="aot_eager"))
print(torch.__version__, "labels in the profile:", seen[0], "compiled:", seen[1])
assert seen == (["forward", "loss"], [])
PY
