"""A loader that decodes PNG files in the training process, on a machine that others keep busy.

Right: still the decoding in the training process: decode once, or `num_workers` (no more than the free cores
allow).
"""

import io

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import images, torch

BACKEND, CAUSE, USES, BUSY = (
    "torch",
    "a Dataset decodes and resizes PNGs; two other processes are busy",
    "monitor",
    "plain without",
)


def train(run):
    from PIL import Image

    files = []
    for image in images(64, 320):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        files.append(buffer.getvalue())

    def decode(file):
        small = Image.open(io.BytesIO(file)).convert("RGB").resize((32, 32), Image.Resampling.LANCZOS)
        return np.asarray(small, "float32").transpose(2, 0, 1) / 255

    ready = [decode(file) for file in files]

    class Photos(torch.utils.data.Dataset):
        def __len__(self):
            return 640

        def __getitem__(self, i):
            return (ready[i % 64] if run.does("without") else decode(files[i % 64])), i % 2

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    loader = torch.utils.data.DataLoader(Photos(), batch_size=16, shuffle=True)
    model(next(iter(loader))[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with run.monitor() as monitor:
        for _ in range(2):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
