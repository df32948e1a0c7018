"""One rank of a PyTorch job over gloo: shares of the work that are equal or not, or an evaluation on one rank alone.

Arguments: folder, rank, what rank 0 does: "more", "even" or "evaluates".
"""

from __future__ import annotations

import sys

import torch

from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.steps import dispatch

STEPS = 60
dispatch._DENSE_S = 0.01  # stack samples enough of so few

folder, rank, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), 1e-3)
size = 4096 if rank == 0 and kind == "more" else 512
torch.manual_seed(1 + rank)  # each rank has batches of its own
held_out = torch.randn(1024, 256)


with GpuUtilMonitor(f"{folder}/worker{rank}", report=False) as monitor:
    for rows in monitor.batches(torch.randn(size, 256) for _ in range(STEPS)):
        optimizer.zero_grad()
        parallel(rows).square().mean().backward()
        optimizer.step()
        if rank == 0 and kind == "evaluates":
            with torch.no_grad():
                for _ in range(3):
                    model(held_out).square().mean()
torch.distributed.destroy_process_group()
