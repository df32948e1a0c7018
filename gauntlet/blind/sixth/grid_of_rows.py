"""A search over widths and learning rates, by hand, on a table whose tensors are in memory, through TensorDataset and
DataLoader (pytorch/pytorch#106704: "extremely slow on in-memory datasets").

Right: the input: the loader takes each of 512 rows from the tensors on its own and stacks them: take a batch at once
(`x[rows]` of a shuffled order, a BatchSampler with `batch_size=None`, or `__getitems__`); workers cost more than they
gain here.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import rows, torch

BACKEND, CAUSE, USES = "torch", "DataLoader takes 512 single rows of tensors in memory and stacks them", "monitor"


def train(run):
    x, y = map(torch.from_numpy, rows(30720, 28))
    data = torch.utils.data.TensorDataset(x, y)

    def batches():
        if not run.does("without"):
            yield from torch.utils.data.DataLoader(data, batch_size=512, shuffle=True)
            return
        for some in torch.randperm(30720).split(512):
            yield x[some], y[some]

    scores = {}
    with run.monitor() as monitor:
        for width, rate in itertools.product((32, 64, 128), (1e-3, 3e-3)):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(28, width),
                torch.nn.BatchNorm1d(width),
                torch.nn.ReLU(),
                torch.nn.Linear(width, width),
                torch.nn.ReLU(),
                torch.nn.Linear(width, 1),
            )
            optimizer = torch.optim.Adam(model.parameters(), rate)
            for _ in range(5):
                for some_x, some_y in monitor.batches(batches()):
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(some_x), some_y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            scores[width, rate] = loss.item()
    assert min(scores.values()) < 1


if __name__ == "__main__":
    main(train)
