#!/usr/bin/env bash
# datasets 5.2.0: `map` with the same function twice.
# Guess: the second is taken from the cache. Seen: only where the data came from disk; of `Dataset.from_dict` the function runs
# for each element again, and nothing says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check datasets==5.2.0
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME=home "$folder/env/bin/python" -W ignore - <<'PY'
import pathlib
import datasets
datasets.disable_progress_bars()
calls = pathlib.Path("calls")

def change(element):
    with calls.open("a") as file:
        file.write("x")
    return {"y": element["x"]}

def calls_of_two(data):
    calls.write_text("")
    for _ in range(2):
        data.map(change)
    return len(calls.read_text())

memory = datasets.Dataset.from_dict({"x": list(range(40))})
memory.save_to_disk("stored")
seen = calls_of_two(memory), calls_of_two(datasets.load_from_disk("stored"))
print(datasets.__version__, "calls for two maps of 40 elements, in memory and from disk:", *seen)
assert seen == (80, 40)
PY
