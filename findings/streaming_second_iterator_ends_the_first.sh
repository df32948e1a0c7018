#!/usr/bin/env bash
# mosaicml-streaming 0.13.0: `next(iter(loader))` during an epoch, as for a picture of a batch or a shape.
# Guess: another pass, which leaves the first alone, as with any DataLoader. Seen: the first pass ends there without an
# error: the epoch of thirteen batches has three, and the state to resume from is one epoch ahead.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check \
    mosaicml-streaming==0.13.0 torch==2.14.1 torchvision==0.29.1
cd "$folder"
cat > program.py <<'PY'
import importlib.metadata
import streaming
import torch

def batches(loader, look):
    seen = 0
    for _ in loader:
        seen += 1
        if look and seen == 3:
            next(iter(loader))
    return seen

if __name__ == "__main__":
    with streaming.MDSWriter(out="data", columns={"y": "int"}) as writer:
        for number in range(100):
            writer.write({"y": number})
    data = streaming.StreamingDataset(local="data", batch_size=8, shuffle=False)
    loader = streaming.StreamingDataLoader(data, batch_size=8)
    plain = torch.utils.data.DataLoader(list(range(100)), batch_size=8)
    seen = {name: batches(of, True) for name, of in (("DataLoader", plain), ("StreamingDataLoader", loader))}
    alone = batches(loader, False)
    print(importlib.metadata.version("mosaicml-streaming"), "batches where one looks", seen, "else", alone)
    assert seen == {"DataLoader": 13, "StreamingDataLoader": 3} and alone == 13
PY
"$folder/env/bin/python" -W ignore program.py
