"""A stream of records that three workers share by keeping each third sample of it, counted after the decoding.

Right: the input: each worker decodes all records and throws two of three away (`islice` around `decoded`): let a worker
skip before it decodes, or give it files of its own; more workers gain nothing, as each adds a full decoding.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import folder, images, np, torch

BACKEND, CAUSE, USES = "torch", "each of three workers decodes the whole stream and keeps a third", "monitor"


def train(run):
    import io

    from PIL import Image

    torch.manual_seed(0)
    with (folder() / "records.bin").open("wb") as file:
        sizes = []
        for photo in images(1200, 128):
            png = io.BytesIO()
            Image.fromarray(photo).save(png, "PNG")
            sizes.append(file.write(png.getvalue()))

    def raw():
        with (folder() / "records.bin").open("rb") as file:
            yield from ((number, file.read(size)) for number, size in enumerate(sizes))

    def decoded(records):
        for number, png in records:
            photo = Image.open(io.BytesIO(png)).resize((64, 64))
            yield np.asarray(photo, "float32").transpose(2, 0, 1) / 255, number % 5

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            mine = torch.utils.data.get_worker_info().id, None, 3
            if run.does("without"):
                return decoded(itertools.islice(raw(), *mine))
            return itertools.islice(decoded(raw()), *mine)

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(7200, 5)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Stream(), batch_size=25, num_workers=3, persistent_workers=True)
    with run.monitor() as monitor:
        for _ in range(6):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
