"""Names are sorted by language with a recurrent network, as in a well-known tutorial: one name a step, letter by
letter; on the card it is slower than on the laptop, and both are hardly busy.

Right: each step trains on one name, letter by letter, so that it starts hundreds of tiny operations: batches of padded
(or packed) names, and all letters in one call (`nn.GRU`, `nn.RNN`) instead of the loop; either of them counts; not the
input, which is in memory, not the reading of the loss each 200th step, and not more workers.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "each step trains on one name, letter by letter", "monitor"


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(28 + 128, 128), torch.nn.Linear(128, 10)

    def forward(self, letters):
        """Return the scores of the languages; letters has the shape (letter, name, 28)."""
        hidden = torch.zeros(letters.shape[1], 128)
        for letter in letters:
            hidden = torch.tanh(self.hidden(torch.cat([letter, hidden], 1)))
        return self.out(hidden)


def train(run):
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    names = [(generator.integers(0, 26, generator.integers(4, 13)), int(generator.integers(10))) for _ in range(3600)]
    together = 32 if run.does("without") else 1
    batches = []
    for first in range(0, len(names), together):
        some = names[first : first + together]
        longest = max(len(name) for name, _ in some)
        letters = torch.zeros(longest, len(some), 28)
        for place, (name, _) in enumerate(some):
            letters[torch.arange(longest - len(name), longest), place, torch.from_numpy(name)] = 1
        batches.append((letters, torch.tensor([language for _, language in some])))

    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with run.monitor() as monitor:
        for epoch in range(6):
            for number, (letters, language) in enumerate(monitor.batches(batches)):
                loss = torch.nn.functional.cross_entropy(model(letters), language)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % 200 == 0:
                    print(f"{epoch} {number}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
