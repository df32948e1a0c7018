"""A recommender whose table of 100,000 items is updated whole by Adam in each step, though a batch has a few of them
(forum: "large embedding makes the optimizer slow").

Right: the step itself, in `optimizer.step` (and the zeroing): Adam goes through all rows of the embedding for each
batch: `Embedding(sparse=True)` with SparseAdam (or SGD, or larger batches); nothing about the input. That the step
takes the time, without the optimizer or the embedding, is partly right.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "Adam updates all 100,000 rows of an embedding in each step of 64 samples", "monitor"


def train(run):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    visits = torch.from_numpy((rng.pareto(1.1, (16000, 12)) * 100).astype("int64") % 100000)
    data = torch.utils.data.TensorDataset(visits[:, :11], visits[:, 11])
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, drop_last=True)

    class Recommender(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.items = torch.nn.Embedding(100000, 32, sparse=run.does("without"))
            self.tower = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))

        def forward(self, history, item):
            user = self.tower(self.items(history).mean(1))
            return user @ self.items(item).T

    model = Recommender()
    if run.does("without"):
        optimizers = [
            torch.optim.SparseAdam(model.items.parameters(), 1e-3),
            torch.optim.Adam(model.tower.parameters(), 1e-3),
        ]
    else:
        optimizers = [torch.optim.Adam(model.parameters(), 1e-3)]
    same = torch.arange(64)
    with run.monitor() as monitor:
        for history, item in monitor.batches(loader):
            loss = torch.nn.functional.cross_entropy(model(history, item), same)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()


if __name__ == "__main__":
    main(train)
