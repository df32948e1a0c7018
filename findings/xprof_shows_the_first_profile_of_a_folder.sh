#!/usr/bin/env bash
# xprof 2.24.2: a profile of three steps is looked at, then a host's profile of five is put in its place (or beside it).
# Guess: the second look shows five steps. Seen: three: what was read first is kept as a file beside the profiles, and answers
# for the folder from then on: who looks before all hosts have written theirs sees the first one's for good.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check xprof==2.24.2 jax==0.10.2
cd "$folder"
"$folder/env/bin/python" -W ignore - 2>/dev/null <<'PY'
import importlib.metadata, json, pathlib, shutil
import jax
import jax.numpy as jnp
from xprof.convert import raw_to_tool_data
function = jax.jit(lambda x: (x @ x).sum())
function(jnp.ones((200, 200))).block_until_ready()

def profile(folder, steps):
    with jax.profiler.trace(folder):
        for step in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                function(jnp.ones((200, 200))).block_until_ready()
    return next(pathlib.Path(folder).rglob("*.xplane.pb"))

def steps(*files):
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(file) for file in files], "input_pipeline_analyzer", {})
    return len(json.loads(data)[1]["rows"])

three, five = profile("three", 3), profile("five", 5)
alone = pathlib.Path("alone/a.xplane.pb")
alone.parent.mkdir()
shutil.copy(five, alone)
first = steps(three)
shutil.copy(five, three)
seen = first, steps(three), steps(alone)
beside = [path.name for path in three.parent.glob("*.pb") if path != three]
version = importlib.metadata.version("xprof")
print(version, "steps: three", seen[0], "five", seen[1], "in a folder of its own", seen[2], "kept:", beside)
assert seen == (3, 3, 5) and beside
PY
