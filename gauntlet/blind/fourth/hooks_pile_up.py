"""Distillation by features, whose helper registers a forward hook in each step and removes none (forum: "every
iteration is slower than the last, and memory grows").

Right: the step itself, which gets slower from step to step, as hooks pile up at `features_of`: register once, or
`handle.remove()`; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = (
    "torch",
    "each step registers two more forward hooks, all of which run and keep a copy",
    "monitor",
)


def train(run):
    torch.manual_seed(0)
    functional = torch.nn.functional

    def network(width):
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 3, 2, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, 32, 3, 2, 1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(2048, 10),
        )

    def features_of(model, x):
        seen = {}

        def keep(module, inputs, output):
            seen["features"] = output.clone()

        handle = model[3].register_forward_hook(keep)
        logits = model(x)
        if run.does("without"):
            handle.remove()
        return seen["features"], logits

    teacher, student = network(64), network(16)
    optimizer = torch.optim.Adam(student.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    with run.monitor() as monitor:
        for _ in range(8):
            for x, y in monitor.batches(loader):
                with torch.no_grad():
                    wanted, _ = features_of(teacher, x)
                features, logits = features_of(student, x)
                loss = functional.cross_entropy(logits, y) + functional.mse_loss(features, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
