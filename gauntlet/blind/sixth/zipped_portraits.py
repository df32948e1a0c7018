"""Portraits in one zip file, as the cluster forbids many small files; two workers read them, and each opens the file
for each portrait, which is what keeps workers from disturbing one another (pytorch/vision#950).

Right: the input: `ZipFile(...)` in `__getitem__` reads and parses the directory of all members for each sample: open it
once in each worker (on the first access), or keep the members' offsets; not the decoding of the PNGs, and not more
workers, as each would parse as much.
"""

import io
import zipfile

from gauntlet.blind import main
from gauntlet.helpers import folder, images, np, torch

BACKEND, CAUSE, USES = "torch", "a zip file of 1000 members is opened anew for each sample", "monitor"


def train(run):
    from PIL import Image

    torch.manual_seed(0)
    path = folder() / "portraits.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i, photo in enumerate(images(1000, 64)):
            png = io.BytesIO()
            Image.fromarray(photo).save(png, "PNG")
            archive.writestr(f"portraits/{i:06}.png", png.getvalue())

    class Portraits(torch.utils.data.Dataset):
        archive = None

        def __len__(self):
            return 1000

        def __getitem__(self, i):
            archive = self.archive or zipfile.ZipFile(path)
            if run.does("without"):
                self.archive = archive
            photo = Image.open(io.BytesIO(archive.read(f"portraits/{i:06}.png"))).convert("RGB")
            return torch.from_numpy(np.array(photo)).permute(2, 0, 1) / 255, i % 40

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 40)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(
        Portraits(), batch_size=40, shuffle=True, num_workers=2, persistent_workers=True
    )
    with run.monitor() as monitor:
        for _ in range(3):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
