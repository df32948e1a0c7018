#!/usr/bin/env bash
# torch 2.13.0: a DataLoader of ten batches under `torch.profiler`.
# Guess: ten events of its `__next__`. Seen: eleven: the fetch that finds the end is one, so counting fetches as steps gives
# a step too many an epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(40, 2)), batch_size=4)
with torch.profiler.profile() as profile:
    batches = sum(1 for _ in loader)
fetches = sum(event.count for event in profile.key_averages() if event.key.endswith("DataLoaderIter.__next__"))
print(torch.__version__, "batches", batches, "fetches", fetches)
assert (batches, fetches) == (10, 11)
PY
