"""Spectrograms of bird calls were cut out of one long tensor and saved with `torch.save`, a file each; each file is as
large as the whole tensor, and the loader spends its time in `torch.load` (pytorch/pytorch#40157).

Right: `__getitem__` reads some megabytes for each sample of 16 KB, since `torch.save` of a view writes all of its
storage: save `calls[i].clone()`, and read the small files (or keep them in memory); more workers only spread the waste
over the cores; not the collation, not the network, and not the batch size.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "each sample's file holds the storage of the whole tensor it is a view of", "monitor"


class Calls(torch.utils.data.Dataset):
    def __init__(self, directory, labels):
        self.directory, self.labels = directory, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        call = torch.load(self.directory / f"{number}.pt")
        return call[None], self.labels[number]


def train(run):
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    directory, labels = folder(), generator.integers(0, 8, 160)
    for first in (0, 80):
        minutes = torch.randn(320, 64, 64)
        for number in range(first, first + 80):
            call = minutes[4 * (number - first)]
            torch.save(call.clone() if run.does("without") else call, directory / f"{number}.pt")

    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 8)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(Calls(directory, labels), 16, shuffle=True)
    with run.monitor() as monitor:
        for epoch in range(8):
            for call, label in monitor.batches(loader):
                loss = nn.functional.cross_entropy(model(call), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
