"""Two ranks over gloo that sum the gradients of eight small batches before each update, and exchange them after each of
the eight (DDP threads on gradient accumulation).

Right: the exchange of gradients takes the time, eight times as often as needed: `no_sync()` around all but the last
of the eight; nothing about the input.
"""

import contextlib

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "gradients are exchanged after each of the eight batches of an update", "torchrun"


def train(run):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)

    class Ranker(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.items = torch.nn.Embedding(40000, 64)
            self.out = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

        def forward(self, items):
            return self.out(self.items(items).mean(1))[:, 0]

    parallel = torch.nn.parallel.DistributedDataParallel(Ranker())
    optimizer = torch.optim.Adam(parallel.parameters())
    data = torch.utils.data.TensorDataset(torch.randint(0, 40000, (3200, 20)), torch.rand(3200))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
    with run.monitor() as monitor:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for i, (items, clicked) in enumerate(monitor.batches(loader)):
                last = i % 8 == 7
                waits = parallel.no_sync() if run.does("without") and not last else contextlib.nullcontext()
                with waits:
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(parallel(items), clicked) / 8
                    loss.backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
