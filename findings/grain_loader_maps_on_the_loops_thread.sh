#!/usr/bin/env bash
# grain 0.2.18: the same source and map, as a MapDataset's stage and as an operation of a DataLoader of no workers.
# Guess: both map ahead of the loop, on the sixteen threads that read. Seen: the MapDataset does; the DataLoader's
# operations run on the loop's own thread when it asks, so that a slow map stops each step there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check grain==0.2.18
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata, threading, time
import grain
mapped = []

class Square(grain.transforms.Map):
    def map(self, element):
        mapped.append(threading.current_thread() is threading.main_thread())
        return element * element

def calls(data, enough):
    mapped.clear()
    iterator = iter(data)
    next(iterator)
    deadline = time.monotonic() + 60
    while len(mapped) < enough and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    return len(mapped), sum(mapped)

sampler = grain.samplers.IndexSampler(2_000, shuffle=False, num_epochs=1, seed=0)
source = list(range(2_000))
loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[Square()], worker_count=0)
lazy = calls(grain.MapDataset.source(source).map(Square()), 501)
eager = calls(loader, 1)
version = importlib.metadata.version("grain")
print(version, "maps made for one element, on the loop's thread: MapDataset", lazy, "DataLoader", eager)
assert lazy == (501, 0) and eager == (1, 1)
PY
