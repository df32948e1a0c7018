"""Heat in a rod by a physics-informed network and LBFGS: no loader, no batches, 25 long steps, each of which calls its
closure up to twenty times on all points and prints the loss. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: a step is twenty passes by intention (`max_iter=20`), and
one loss a step is read; not "use a loader or smaller batches", not the double backward pass, which the equation needs.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "LBFGS calls the closure up to twenty times a step, on all points, and each step prints its loss"


def train(run):
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
    model.append(nn.Linear(96, 1))
    inside = torch.rand(1500, 2, requires_grad=True)
    ends = torch.cat([torch.rand(200, 2) * torch.tensor([0.0, 1.0]), torch.rand(200, 2) * torch.tensor([1.0, 0.0])])
    wanted = torch.sin(torch.pi * ends[:, :1])
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, 20, history_size=30)

    def closure():
        optimizer.zero_grad()
        heat = model(inside)
        first = torch.autograd.grad(heat.sum(), inside, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)[0]
        loss = ((first[:, 1:] - 0.1 * second[:, :1]) ** 2).mean() + ((model(ends) - wanted) ** 2).mean()
        loss.backward()
        return loss

    with run.monitor() as monitor:
        for number in range(25):
            with monitor.step():
                loss = optimizer.step(closure)
            if not run.does("without"):
                print(f"step {number}: {loss.item():.5f}")


if __name__ == "__main__":
    main(train)
