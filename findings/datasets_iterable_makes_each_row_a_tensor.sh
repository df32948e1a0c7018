#!/usr/bin/env bash
# datasets 5.2.0: 8,000 rows of 100 numbers as tensors, in batches of 64 from a DataLoader of PyTorch, on its own thread.
# Guess: an IterableDataset is as quick as the Dataset that it was made of, or quicker, as it reads in order. Seen: it
# makes each row a tensor of its own, and takes several times as long; batched by itself (`.batch(64)`, and a DataLoader
# with batch_size=None) it is about as quick as the Dataset.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check datasets==5.2.0 torch==2.13.0
cd "$folder"
HF_HUB_OFFLINE=1 HF_HOME="$folder" "$folder/env/bin/python" -W ignore - 2> /dev/null <<'PY'
import time
import datasets, numpy, torch

rows = datasets.Dataset.from_dict({"x": numpy.random.rand(8000, 100).astype("float32").tolist()})
by_rows = rows.to_iterable_dataset().with_format("torch")
loaders = {
    "Dataset": torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=64),
    "IterableDataset": torch.utils.data.DataLoader(by_rows, batch_size=64),
    "IterableDataset.batch": torch.utils.data.DataLoader(by_rows.batch(64), batch_size=None),
}

def cpu_s(loader):
    began = time.process_time()
    assert sum(len(batch["x"]) for batch in loader) == 8000
    return time.process_time() - began

seconds = {name: round(min(cpu_s(loader) for _ in range(3)), 3) for name, loader in loaders.items()}
print("datasets", datasets.__version__, "CPU seconds a pass:", seconds)
assert seconds["IterableDataset"] > 2.5 * seconds["Dataset"]
assert seconds["IterableDataset.batch"] < 0.5 * seconds["IterableDataset"]
PY
