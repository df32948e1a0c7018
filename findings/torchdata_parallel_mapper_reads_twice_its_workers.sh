#!/usr/bin/env bash
# torchdata 0.11.0: a ParallelMapper of four threads, one element taken.
# Guess: four are under way, so five were read. Seen: nine: twice as many as there are workers wait in its queues.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torchdata==0.11.0 torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata, time
import torchdata.nodes as nodes
read = []

class Numbers(nodes.BaseNode):
    def reset(self, state=None):
        super().reset(state)
    def next(self):
        read.append(len(read))
        return read[-1]
    def get_state(self):
        return {}

elements = iter(nodes.Loader(nodes.ParallelMapper(Numbers(), lambda number: number, num_workers=4, method="thread")))
next(elements)
deadline = time.monotonic() + 60
while len(read) < 9 and time.monotonic() < deadline:
    time.sleep(0.1)
time.sleep(1)
print(importlib.metadata.version("torchdata"), "elements read for one", len(read))
assert len(read) == 9
PY
