#!/usr/bin/env bash
# webdataset 1.0.2: `with_epoch(3)` over shards that hold thirteen batches, iterated over four times.
# Guess: an epoch of three batches goes on where the last one ended. Seen: each begins at the first shard: of thirteen
# batches ten are never seen, unless shards are resampled or shuffled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check webdataset==1.0.2 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata
import webdataset
for shard in range(4):
    with webdataset.TarWriter(f"{shard}.tar") as writer:
        for sample in range(25):
            writer.write({"__key__": f"{shard}-{sample:03d}", "number.cls": 25 * shard + sample})
data = webdataset.WebDataset("{0..3}.tar", shardshuffle=False).decode().to_tuple("number.cls").batched(8)
whole = sum(1 for _ in data)
epochs = [[int(batch[0][0]) for batch in data.with_epoch(3)] for _ in range(4)]
print(importlib.metadata.version("webdataset"), "batches", whole, "first sample of each by epoch", epochs)
assert whole == 13 and epochs == [[0, 8, 16]] * 4
PY
