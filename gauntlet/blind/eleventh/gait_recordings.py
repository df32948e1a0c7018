"""Gaits of patients, one CSV file a recording; the Dataset keeps a list of the files and `__getitem__` reads one by
`pd.read_csv`, as a tutorial on custom datasets does with its images.

Right: the input: `__getitem__` parses a CSV file of 300 lines with pandas for each sample in each epoch: read all
files once in `__init__` (they take 3 MB), or convert them to .npy; workers are half an answer; not the network, not
the batch size, and not the disk, whose files are in its cache.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "__getitem__ parses a CSV file by pandas for each sample in each epoch", "monitor"
COLUMNS = ["time", "ax", "ay", "az", "gx", "gy", "gz"]


class Gaits(torch.utils.data.Dataset):
    def __init__(self, files, kinds, kept):
        self.files, self.kinds = files, kinds
        self.kept = [self.read(file) for file in files] if kept else None

    def read(self, file):
        import pandas as pd

        table = pd.read_csv(file)
        signal = table[COLUMNS[1:]].to_numpy("float32")
        return torch.from_numpy((signal - signal.mean(0)) / signal.std(0)).T.contiguous()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        signal = self.kept[number] if self.kept else self.read(self.files[number])
        return signal, self.kinds[number]


def train(run):
    import pandas as pd

    torch.manual_seed(0)
    generator, path = np.random.default_rng(0), folder()
    files = [path / f"patient{number}.csv" for number in range(360)]
    for file in files:
        steps = np.column_stack([np.arange(300) / 100, generator.normal(size=(300, 6))])
        pd.DataFrame(steps.round(5), columns=COLUMNS).to_csv(file, index=False)
    kinds = torch.randint(0, 3, (len(files),))
    run.start()
    gaits = Gaits(files, kinds, run.does("without"))
    loader = torch.utils.data.DataLoader(gaits, 24, shuffle=True)
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv1d(6, 24, 7, stride=2), nn.ReLU(), nn.Conv1d(24, 32, 5, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 3)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with run.monitor() as monitor:
        for epoch in range(14):
            for signal, kind in monitor.batches(loader):
                loss = nn.functional.cross_entropy(model(signal), kind)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
