"""Gestures of a wrist's sensor, joined to batches by `torch.tensor` of a list of arrays, in spite of its warning
(CorentinJ/Real-Time-Voice-Cloning#893), while others use the machine.

Right: the input: `collate` makes a tensor of a list of NumPy arrays, number by number: `np.stack` first, then
`torch.from_numpy` (or the default collation); not the reading, which is of memory. That others use the cores may be
said besides, but is not what the time goes to.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = (
    "torch",
    "collate_fn calls torch.tensor on a list of arrays; two other processes are busy",
    "monitor",
)
BUSY = "plain without"


def train(run):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    gestures = [rng.normal(size=(150, 9)).astype("float32") for _ in range(640)]

    class Gestures(torch.utils.data.Dataset):
        def __len__(self):
            return len(gestures)

        def __getitem__(self, i):
            return gestures[i], i % 8

    def collate(samples):
        series, kinds = zip(*samples, strict=True)
        if run.does("without"):
            return torch.from_numpy(np.stack(series)), torch.tensor(kinds)
        return torch.tensor(series), torch.tensor(kinds)

    class Recognizer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv1d(9, 24, 5, 2)
            self.second = torch.nn.Conv1d(24, 24, 5, 2)
            self.out = torch.nn.Linear(24, 8)

        def forward(self, series):
            hidden = torch.relu(self.first(series.transpose(1, 2)))
            return self.out(torch.relu(self.second(hidden)).mean(2))

    model = Recognizer()
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Gestures(), batch_size=64, shuffle=True, collate_fn=collate)
    with run.monitor() as monitor:
        for _ in range(25):
            for series, kinds in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(series), kinds)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
