#!/usr/bin/env bash
# torch 2.13.0: the buckets in which DistributedDataParallel (gloo, one process) reduces 38 MiB of gradients, by step.
# Guess: the same in each step, a small first one and others of 25 MiB, reduced during the backward pass. Seen: one of 38 MiB in
# the first step, when the backward pass is over, three from the second on: a profile of the first shows no overlap.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import torch
import torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
layers = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(10)])
model = torch.nn.parallel.DistributedDataParallel(layers)
buckets = []

def hook(state, bucket):
    buckets.append(round(bucket.buffer().numel() * 4 / 2**20))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future

model.register_comm_hook(None, hook)
steps = []
for _ in range(3):
    buckets.clear()
    model(torch.ones(2, 1000)).sum().backward()
    steps.append(list(buckets))
torch.distributed.destroy_process_group()
print(torch.__version__, "MiB of each bucket, by step:", steps)
assert steps == [[38], [4, 27, 8], [4, 27, 8]]
PY
