"""Two ranks by `torchrun`, as of this week; an epoch lasts as long as with one card, although both are at 100 %
(clovaai/voxceleb_trainer#98, nerfstudio-project/gsplat#394).

Right: each rank goes through all rows, since the loader has no `DistributedSampler`, so that two cards do the same work
twice: `sampler=DistributedSampler(dataset)` with `set_epoch`, which halves the steps of an epoch; not the exchange of
the gradients first of all, not the input, and not the network's size.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "both ranks train on all rows, as there is no DistributedSampler", "torchrun"


def train(run):
    data, distributed, nn = torch.utils.data, torch.distributed, torch.nn
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    cells = data.TensorDataset(torch.randn(2560, 3, 24, 24), torch.randint(0, 6, (2560,)))
    if run.does("without"):
        sampler = data.DistributedSampler(cells)
        loader = data.DataLoader(cells, 32, sampler=sampler)
    else:
        sampler, loader = None, data.DataLoader(cells, 32, shuffle=True)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 6)),
    )
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    with run.monitor() as monitor:
        for epoch in range(4):
            if sampler:
                sampler.set_epoch(epoch)
            for cell, kind in monitor.batches(loader):
                loss = nn.functional.cross_entropy(model(cell), kind)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if distributed.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.3f}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
