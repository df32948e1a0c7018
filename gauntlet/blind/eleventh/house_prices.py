"""Homework on house prices: a table of 79 columns as tensors, a `DataLoader` and three layers; `batch_size=4` was in
the notebook it was copied from. The GPU is at 5 %.

Right: batches of four rows: each of many thousand steps costs more to start (and to fetch) than to compute:
`batch_size=64` or more, with the learning rate to match; not workers for the loader, which is in memory, not the
printed loss, and not the size of the network. That the loader collates single rows is a lesser part of it.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "batch_size=4, for a network of three small layers", "monitor"


def train(run):
    torch.manual_seed(0)
    nn = torch.nn
    houses = torch.randn(4800, 79)
    prices = houses[:, :8].sum(1, keepdim=True) + 0.1 * torch.randn(4800, 1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(houses, prices), 128 if run.does("without") else 4, shuffle=True
    )
    model = nn.Sequential(nn.Linear(79, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    with run.monitor() as monitor:
        for epoch in range(12):
            running = 0.0
            for house, price in monitor.batches(loader):
                optimizer.zero_grad()
                loss = criterion(model(house), price)
                loss.backward()
                optimizer.step()
                running += loss.detach() * len(house)
            print(f"epoch {epoch + 1}: {(running / len(houses)).item():.4f}")


if __name__ == "__main__":
    main(train)
