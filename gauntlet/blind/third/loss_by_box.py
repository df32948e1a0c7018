"""A detector whose loss goes through images and boxes in two Python loops (TencentYoutuResearch's OneStageDet#77).

Right: the step itself, at `loss_of`: thousands of tiny operations; compute the overlaps of all boxes at once, on
tensors; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "the loss loops over images and boxes in Python", "monitor"


def overlap(one, other):
    """Return intersection over union of boxes (centre, size), along the last axis."""
    low = torch.maximum(one[..., :2] - one[..., 2:] / 2, other[..., :2] - other[..., 2:] / 2)
    high = torch.minimum(one[..., :2] + one[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (one[..., 2:].prod(-1) + other[..., 2:].prod(-1) - both + 1e-6)


def loss_of(found, wanted):
    total = 0.0
    for image in range(len(found)):
        for box in range(wanted.shape[1]):
            score = overlap(found[image, box], wanted[image, box])
            distance = (found[image, box] - wanted[image, box]).abs().sum()
            total = total + (1 - score) + 0.1 * distance
    return total / wanted[..., 0].numel()


def loss_at_once(found, wanted):
    return (1 - overlap(found, wanted) + 0.1 * (found - wanted).abs().sum(-1)).mean()


def train(run):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.rand(320, 3, 48, 48), 0.2 + 0.6 * torch.rand(320, 6, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, 2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 11 * 11, 24),
        torch.nn.Sigmoid(),
    )
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor() as monitor:
        for _ in range(15):
            for x, boxes in monitor.batches(loader):
                found = model(x).view(-1, 6, 4)
                loss = (loss_at_once if run.does("without") else loss_of)(found, boxes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
