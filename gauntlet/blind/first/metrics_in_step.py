"""A segmentation loop that counts a confusion matrix pixel by pixel in each training step (many a "why so slow"
thread).

Right: Python in the step takes the time, at `confusion`: count with tensors, or only now and then; nothing about
the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "a confusion matrix is counted in Python in each step", "monitor"


def confusion(labels, guesses):
    counts = [[0] * 5 for _ in range(5)]
    for label, guess in zip(labels.flatten().tolist(), guesses.flatten().tolist(), strict=True):
        counts[label][guess] += 1
    return counts


def train(run):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(320, 3, 64, 64), torch.randint(0, 5, (320, 64, 64)))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Conv2d(3, 5, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor() as monitor:
        for _ in range(12):
            for x, y in monitor.batches(loader):
                logits = model(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if not run.does("without"):
                    confusion(y, logits.argmax(1))


if __name__ == "__main__":
    main(train)
