#!/usr/bin/env bash
# torch 2.13.0: `profiler.step()` after each of four steps, with and without `schedule=`.
# Guess: a `ProfilerStep#N` for each, as with a schedule. Seen: none at all without one: the calls do nothing, and no tool
# can tell the steps of such a trace.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import json
import torch

def marked(file, **options):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profile:
        for _ in range(4):
            torch.ones(10).exp()
            profile.step()
    profile.export_chrome_trace(file)
    names = [event["name"] for event in json.load(open(file))["traceEvents"] if event.get("ph") == "X"]
    return names.count("aten::exp"), sum(name.startswith("ProfilerStep") for name in names)

without = marked("without.json")
scheduled = marked("with.json", schedule=torch.profiler.schedule(wait=0, warmup=0, active=4, repeat=1))
print(torch.__version__, "calls and marked steps: no schedule", without, "schedule", scheduled)
assert without == (4, 0) and scheduled == (4, 4)
PY
