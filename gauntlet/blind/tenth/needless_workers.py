"""Crops of satellite maps are tensors in memory; "more workers are faster" was the advice, so the loader has six, and
an epoch takes longer than without any.

Right: the six worker processes only index tensors that are in memory already, and each batch of 5 MB must be copied
into shared memory and handed over, which takes longer: `num_workers=0` (or one or two), or index the tensors a batch at
a time; not "more workers", not a larger prefetch, not the storage, not the network.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "six workers hand over what is in memory already", "monitor"


class Maps(torch.utils.data.Dataset):
    def __init__(self, maps, kinds):
        self.maps, self.kinds = maps, kinds

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, number):
        return self.maps[number], self.kinds[number]


def train(run):
    torch.manual_seed(0)
    maps = Maps(torch.rand(1600, 13, 40, 40), torch.randint(0, 10, (1600,)))
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(13, 12, 4, stride=4), nn.ReLU()),
        *(nn.Conv2d(12, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    workers = {} if run.does("without") else {"num_workers": 6, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(maps, 64, shuffle=True, **workers)
    with run.monitor() as monitor:
        for epoch in range(15):
            for part, kind in monitor.batches(loader):
                loss = nn.functional.cross_entropy(model(part), kind)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
