#!/usr/bin/env bash
# webdataset 1.0.2: how many samples `shuffle(1000)` has read when it gives its first, its 900th and its 2,000th.
# Guess: 1,000 before the first, then one for each. Seen: 100 before the first, then two for each one until the buffer is full
# after 900: the input costs twice as much in the first 900 samples of an epoch, which are mixed little, as later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check webdataset==1.0.2
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata
import webdataset
with webdataset.TarWriter("shard.tar") as writer:
    for sample in range(4000):
        writer.write({"__key__": f"{sample:05d}", "number.cls": sample})
read = []
samples = iter(webdataset.WebDataset("shard.tar", shardshuffle=False).map(lambda sample: read.append(0) or sample).shuffle(1000))
seen = [len(read) for _ in zip(range(2000), samples)]
first, half, full, last = (seen[taken - 1] for taken in (1, 500, 900, 2000))
print(importlib.metadata.version("webdataset"), "samples read for 1, 500, 900, 2000:", first, half, full, last)
assert (first, half, full, last) == (100, 1098, 1898, 2999)
PY
