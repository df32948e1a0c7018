"""A loop of so many updates rather than epochs, as in many papers' code; it got slower when the data grew from ten
thousand to almost a million rows, at the same batch size (MishaLaskin/vqvae#18, skhu101/GM-NAS#4).

Right: the input: `next(iter(loader))` begins a new pass for each update, for which the sampler shuffles the numbers of
all rows: make the iterator once, before the loop (and again when it ends), or go through the loader itself; not that a
sample is costly, not more workers (each update would start them anew), not the network.
"""

from gauntlet.blind import main
from gauntlet.helpers import rows, torch

BACKEND, CAUSE, USES = "torch", "next(iter(loader)) shuffles the numbers of all rows for each update", "monitor"


def train(run):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows(800_000, 24)))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    kept = iter(loader)
    with run.monitor() as monitor:
        for _ in monitor.batches(range(300)):
            x, y = next(kept if run.does("without") else iter(loader))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(train)
