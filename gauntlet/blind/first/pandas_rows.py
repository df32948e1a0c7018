"""A table in pandas, read with `iloc` row by row in `__getitem__` (a forum's "GPU at 2 % on tabular data").

Right: the DataLoader makes samples in the training process by `iloc`; arrays instead of rows, batches at once, or
`num_workers`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "Dataset.__getitem__ reads a DataFrame by iloc", "monitor"


def train(run):
    import pandas as pd

    table = pd.DataFrame(np.random.default_rng(0).random((8000, 24)).astype("float32"))
    table["label"] = np.arange(8000) % 2
    values, labels = table.drop(columns="label").to_numpy(), table["label"].to_numpy()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(table)

        def __getitem__(self, i):
            if run.does("without"):
                return values[i], labels[i]
            row = table.iloc[i]
            return torch.tensor(row.drop("label").to_numpy("float32")), int(row["label"])

    loader = torch.utils.data.DataLoader(Rows(), batch_size=64, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(24, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor() as monitor:
        for _ in range(1):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
