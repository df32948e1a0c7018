#!/usr/bin/env bash
# grain 0.2.18: `worker_count=0`, one element taken.
# Guess: one element, or a few, were read from the source. Seen: 501: sixteen threads of the process itself read ahead of
# the loop, into a buffer of 500 elements, whatever the elements weigh; `worker_count` says nothing about it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check grain==0.2.18
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata, time
import grain
read = []

class Source:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        read.append(index)
        return index

sampler = grain.samplers.IndexSampler(10_000, shuffle=False, num_epochs=1, seed=0)
loader = grain.DataLoader(data_source=Source(), sampler=sampler, worker_count=0)
elements = iter(loader)
next(elements)
deadline = time.monotonic() + 60
while len(read) < 501 and time.monotonic() < deadline:
    time.sleep(0.1)
time.sleep(1)
print(importlib.metadata.version("grain"), "elements read for one", len(read))
assert len(read) == 501
PY
