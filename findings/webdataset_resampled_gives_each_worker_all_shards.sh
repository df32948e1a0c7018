#!/usr/bin/env bash
# webdataset 1.0.2, torch 2.13.0: two shards of 40 samples and a DataLoader of four workers.
# Guess: a shard is the least
# that a worker gets, so that two of the four have nothing to do. Seen: so it is as a dataset is usual, and those two
# raise (ValueError, no samples); with resampled=True each worker draws from all shards by itself, and all four read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check webdataset==1.0.2 torch==2.13.0
cd "$folder"
cat > program.py <<'PY'
import torch, webdataset

def worker(sample):
    return torch.utils.data.get_worker_info().id

if __name__ == "__main__":
    files = ["0.tar", "1.tar"]
    for file in files:
        with webdataset.TarWriter(file) as tar:
            for number in range(40):
                tar.write({"__key__": f"{file[0]}{number}", "x.txt": "1"})
    read_by = {}
    for name, how in {"usual": {"empty_check": False}, "resampled": {"resampled": True}}.items():
        data = webdataset.WebDataset(files, shardshuffle=False, **how).map(worker).with_epoch(40)
        batches = torch.utils.data.DataLoader(data, batch_size=8, num_workers=4)
        read_by[name] = sorted({int(one) for batch in batches for one in batch})
    raised = ""
    try:
        list(torch.utils.data.DataLoader(webdataset.WebDataset(files, shardshuffle=False).map(worker), num_workers=4))
    except ValueError as error:
        raised = "fewer shards than workers" if "fewer shards than workers" in str(error) else str(error)
    print("webdataset", webdataset.__version__, "two shards are read by workers", read_by, "checked:", raised)
    assert read_by == {"usual": [0, 1], "resampled": [0, 1, 2, 3]} and raised == "fewer shards than workers"
PY
"$folder/env/bin/python" -W ignore program.py 2> /dev/null
