"""Patches of histology slides lie in one HDF5 file; as forums advise, the data set opens it where it is used, but for
each patch anew, and an epoch takes several times as long as it would with the arrays in memory.

Right: `__getitem__` opens the HDF5 file and looks its data sets up anew for each patch: open it once (in `__getitem__`
at the first call, a handle for each worker), or read all patches once, as they fit into memory; more workers only
spread it over the cores; not the storage of the file, not the network, and not the batch size.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "the HDF5 file is opened anew for each sample", "monitor"


class Patches(torch.utils.data.Dataset):
    def __init__(self, path, keep):
        self.path, self.keep, self.file = path, keep, None

    def __len__(self):
        return 1536

    def __getitem__(self, number):
        import h5py

        if self.keep:
            self.file = self.file or h5py.File(self.path, "r")
            patch, label = self.file["slides/patches"][number], self.file["slides/labels"][number]
        else:
            with h5py.File(self.path, "r") as file:
                patch, label = file["slides/patches"][number], file["slides/labels"][number]
        return torch.from_numpy(patch).float().permute(2, 0, 1) / 255, int(label)


def train(run):
    import h5py

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    path = folder() / "patches.h5"
    with h5py.File(path, "w") as file:
        slides = file.create_group("slides")
        slides["patches"] = generator.integers(0, 256, (1536, 32, 32, 3), dtype="uint8")
        slides["labels"] = generator.integers(0, 2, 1536)

    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 2)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(Patches(path, run.does("without")), 64, shuffle=True)
    with run.monitor() as monitor:
        for epoch in range(8):
            for patch, label in monitor.batches(loader):
                loss = nn.functional.cross_entropy(model(patch), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
