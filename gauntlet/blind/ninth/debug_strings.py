"""Energies of molecules; the loop has `logger.debug(f"...")` lines from the days when it gave NaN. The level has been
INFO ever since, so that nobody sees them, and a step takes several times as long as it should.

Right: each step formats tensors as text for `logger.debug`, in f-strings that are evaluated whatever the level is, and
each needs the values on the host: take the lines out, or pass the tensors as arguments (`logger.debug("%s", x)`), or
ask `logger.isEnabledFor(DEBUG)` first; not the data, not the printing of the loss each 50th step.
"""

import logging

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = (
    "torch",
    "f-strings for logger.debug format tensors in each step, though none is logged",
    "monitor",
)


def train(run):
    logging.basicConfig(level=logging.INFO)
    logger = logging.getLogger("energies")
    torch.manual_seed(0)
    atoms, energies = torch.randn(64 * 150, 60), torch.randn(64 * 150, 1)
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Linear(60, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU()),
        nn.Linear(384, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    rows = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(atoms), 64, drop_last=True)
    loader = [(atoms[chosen], energies[chosen]) for chosen in rows]
    with run.monitor() as monitor:
        for epoch in range(2):
            for number, (x, y) in enumerate(monitor.batches(loader)):
                predicted = model(x)
                loss = nn.functional.mse_loss(predicted, y)
                optimizer.zero_grad()
                loss.backward()
                if not run.does("without"):
                    logger.debug(f"batch {number}: {x} -> {predicted}, wanted {y}")
                    for name, weight in model.named_parameters():
                        logger.debug(f"{name}: {weight}, gradient {weight.grad}")
                optimizer.step()
                if number % 50 == 49:
                    logger.info("epoch %d, batch %d: %.3f", epoch, number, loss.item())


if __name__ == "__main__":
    main(train)
