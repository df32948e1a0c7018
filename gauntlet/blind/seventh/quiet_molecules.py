"""Molecules as graphs of unequal size, joined in one piece by `collate_fn` in a worker; the gradients are clipped, a
schedule is stepped and an average of the weights is kept, in each step. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the worker is ahead of the steps, and clipping, schedule
and average are a few joined operations each.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "gradients are clipped, a schedule stepped and the weights averaged in each step"


def train(run):
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    molecules = []
    for size in generator.integers(12, 40, 960):
        bonds = generator.integers(0, size, (2, 2 * size))
        atoms = generator.normal(size=(size, 16)).astype("float32")
        molecules.append((torch.from_numpy(atoms), torch.from_numpy(bonds), float(size)))

    def collate(chosen):
        atoms, bonds, target = zip(*chosen, strict=True)
        sizes = torch.tensor([len(one) for one in atoms])
        starts = sizes.cumsum(0) - sizes
        bonds = torch.cat(bonds, 1) + starts.repeat_interleave(2 * sizes)
        return torch.cat(atoms), bonds, torch.arange(len(sizes)).repeat_interleave(sizes), torch.tensor(target)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = (16, 192, 192, 192)
            pairs = itertools.pairwise(widths)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(2 * one, other) for one, other in pairs)
            self.head = torch.nn.Linear(192, 1)

        def forward(self, atoms, bonds, molecule, count):
            for layer in self.layers:
                around = torch.zeros_like(atoms).index_add(0, bonds[1], atoms[bonds[0]])
                atoms = torch.relu(layer(torch.cat([atoms, around / 4], 1)))
            return self.head(atoms.new_zeros(count, 192).index_add(0, molecule, atoms))[:, 0]

    model = Network()
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.AdamW(weights, 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=180)
    loader = torch.utils.data.DataLoader(
        molecules, batch_size=32, shuffle=True, collate_fn=collate, num_workers=1, persistent_workers=True
    )
    with run.monitor() as monitor:
        for _ in range(6):
            for atoms, bonds, molecule, target in monitor.batches(loader):
                loss = torch.nn.functional.huber_loss(model(atoms, bonds, molecule, len(target)), target)
                optimizer.zero_grad()
                loss.backward()
                if run.does("without"):
                    optimizer.step()
                    continue
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                torch._foreach_lerp_(average, [weight.detach() for weight in weights], 0.01)


if __name__ == "__main__":
    main(train)
