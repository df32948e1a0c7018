"""Contrastive learning on textures: each step calls the network twice, for two views of each picture, which one worker
crops and flips by chance; all pairs of a batch are compared. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the two calls are two different views, so that neither is
needless (both in one call take as long), and the worker is ahead of the steps; not a repeated forward pass, not more
workers, not the comparison of all pairs, and not the printed loss.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "the network is called twice in each step, for two views of each picture"


class Views(torch.utils.data.Dataset):
    """Two crops of each picture."""

    def __init__(self, count):
        self.pictures = torch.rand(count, 3, 48, 48)

    def __len__(self):
        return len(self.pictures)

    def view(self, picture):
        top, left, turned = (int(number) for number in torch.randint(0, 16, (3,)))
        crop = picture[:, top : top + 32, left : left + 32]
        return (crop.flip(-1) if turned % 2 else crop) * (0.8 + 0.4 * torch.rand(3, 1, 1))

    def __getitem__(self, number):
        return self.view(self.pictures[number]), self.view(self.pictures[number])


def train(run):
    torch.manual_seed(0)
    nn = torch.nn
    layers, before = [], 3
    for width in (24, 32, 48):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(Views(960), 32, shuffle=True, num_workers=1, persistent_workers=True)
    same = torch.arange(32)
    with run.monitor() as monitor:
        for epoch in range(8):
            for number, (one, other) in enumerate(monitor.batches(loader)):
                if run.does("without"):
                    one, other = model(torch.cat([one, other])).chunk(2)
                else:
                    one, other = model(one), model(other)
                alike = nn.functional.normalize(one) @ nn.functional.normalize(other).T / 0.2
                loss = (nn.functional.cross_entropy(alike, same) + nn.functional.cross_entropy(alike.T, same)) / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % 10 == 0:
                    print(f"{epoch} {number}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
