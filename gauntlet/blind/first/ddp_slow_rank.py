"""Two ranks over gloo, the second of which decodes its half of the data more slowly (a forum's "one GPU waits for the
other").

Right: rank 1's input holds both up; rank 0 waits for it in the exchange of gradients.
"""

import os
import time

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "rank 1 reads from slow storage", "torchrun"


def train(run):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])

    class Half(torch.utils.data.Dataset):
        def __len__(self):
            return 3200

        def __getitem__(self, i):
            if rank == 1 and not run.does("without"):
                time.sleep(0.002)
            return torch.full((64,), float(i % 7)), i % 2

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(Half(), batch_size=16)
    with run.monitor() as monitor:
        for x, y in monitor.batches(loader):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
