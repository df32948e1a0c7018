"""Loans in a Parquet file, of which a `Dataset` takes one row at a time, shuffled: a row can't be read without its
row group, and all of a group is decoded for each row (uber/petastorm#398).

Right: the input: `group_of` (called from `__getitem__`) reads and decodes 3000 rows for each sample: read the table
once before training, or keep the groups that were read, or shuffle groups and rows within them; not more workers
first (as each would decode as much), not the model, and not the disk (the file is in memory).
"""

import functools

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "a Parquet row group of 3000 rows is decoded for each row", "monitor"


def train(run):
    import pyarrow as pa
    import pyarrow.parquet as pq

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    names = [f"feature_{i}" for i in range(16)]
    columns = {name: generator.normal(size=24_000).round(3).astype("float32") for name in names}
    path = folder() / "loans.parquet"
    pq.write_table(pa.table(columns | {"default": generator.integers(0, 2, 24_000)}), path, row_group_size=3000)
    file = pq.ParquetFile(path)

    def group_of(number):
        table = file.read_row_group(number)
        return np.stack([table[name].to_numpy() for name in names], 1), table["default"].to_numpy()

    if run.does("without"):
        group_of = functools.cache(group_of)

    class Loans(torch.utils.data.Dataset):
        def __len__(self):
            return 24_000

        def __getitem__(self, i):
            number, row = divmod(i, 3000)
            features, defaulted = group_of(number)
            return torch.from_numpy(features[row]), int(defaulted[row])

    model = torch.nn.Sequential(
        torch.nn.Linear(16, 384), torch.nn.ReLU(), torch.nn.Linear(384, 384), torch.nn.ReLU(), torch.nn.Linear(384, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = torch.utils.data.RandomSampler(Loans(), num_samples=12_800)
    loader = torch.utils.data.DataLoader(Loans(), batch_size=128, sampler=sampler)
    with run.monitor() as monitor:
        for x, y in monitor.batches(loader):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(train)
