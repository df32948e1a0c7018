"""A sampler of one's own that balances the classes, and asks the data set for each label, class by class, whenever an
epoch begins (few-shot and re-identification repositories).

Right: the first batch of each epoch waits for `__iter__` of the program's sampler, which loads every sample ten times:
collect the labels once, in `__init__`, from a list; the batches after it wait for little.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "the sampler loads every file once a class, at the start of each epoch", "monitor"


def train(run):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for i in range(1200):
        np.savez(folder() / f"{i:05}.npz", x=rng.random((3, 32, 32), "float32"), y=i % 10)

    class Faces(torch.utils.data.Dataset):
        def __len__(self):
            return 1200

        def __getitem__(self, i):
            with np.load(folder() / f"{i:05}.npz") as file:
                return file["x"], int(file["y"])

    class Balanced(torch.utils.data.Sampler):
        def __init__(self, data, each):
            self.data, self.each, self.known = data, each, None

        def __len__(self):
            return 10 * self.each

        def by_class(self):
            return [[i for i in range(len(self.data)) if self.data[i][1] == label] for label in range(10)]

        def __iter__(self):
            if run.does("without"):
                self.known = self.known or [list(range(label, 1200, 10)) for label in range(10)]
            members = self.known or self.by_class()
            picked = [rng.choice(one, self.each, replace=False) for one in members]
            yield from np.stack(picked, 1).ravel().tolist()

    data = Faces()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3600, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(data, batch_size=40, sampler=Balanced(data, 80))
    with run.monitor() as monitor:
        for _ in range(5):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
