"""Chapters of books are read in chunks by a GRU whose state goes on from one chunk to the next; the last chunks of a
chapter take ten times as long as its first, and memory grows with them (isds-neu/PeRCNN#3, pytorch/pytorch#2769).

Right: in the step, in `backward`: the state is never detached, so that each chunk's `backward(retain_graph=True)` goes
through all chunks before it again: `state.detach()` between the chunks (and no `retain_graph`), or add up the losses
and go backwards once a chapter; not the input, and not a smaller network or batch.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = (
    "torch",
    "each chunk's backward goes through all chunks before it, as the state is kept",
    "monitor",
)


def train(run):
    torch.manual_seed(0)
    chapters = torch.from_numpy(np.random.default_rng(0).integers(0, 96, (480, 12 * 24 + 1)))

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.letters = torch.nn.Embedding(96, 64)
            self.memory = torch.nn.GRU(64, 128, batch_first=True)
            self.head = torch.nn.Linear(128, 96)

        def forward(self, letters, state):
            hidden, state = self.memory(self.letters(letters), state)
            return self.head(hidden), state

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(chapters, batch_size=16, shuffle=True)
    with run.monitor() as monitor:
        for chapter in monitor.batches(loader):
            state = torch.zeros(1, 16, 128)
            optimizer.zero_grad()
            for start in range(0, 12 * 24, 24):
                letters, following = chapter[:, start : start + 24], chapter[:, start + 1 : start + 25]
                scores, state = model(letters, state)
                loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
                if run.does("without"):
                    state = state.detach()
                    loss.backward()
                else:
                    loss.backward(retain_graph=True)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    main(train)
