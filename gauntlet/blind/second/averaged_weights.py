"""A loop that keeps a moving average by copying the whole model and walking its parameters in each step (EMA
threads).

Right: Python in the step takes the time, at `average`: `torch.optim.swa_utils` / `_foreach` or every n-th step;
not the input.
"""

import copy

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "the model is deep-copied and averaged element by element in each step", "monitor"


def average(kept, model):
    merged = copy.deepcopy(model)
    for name, value in merged.state_dict().items():
        for row, old in zip(value.view(len(value), -1), kept.state_dict()[name].view(len(value), -1), strict=True):
            row.mul_(0.01).add_(old, alpha=0.99)
    return merged


def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)], torch.nn.Linear(64, 2))
    kept = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(4800, 64), torch.randint(0, 2, (4800,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    with run.monitor() as monitor:
        for _ in range(4):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if not run.does("without"):
                    kept = average(kept, model)


if __name__ == "__main__":
    main(train)
