"""Words for a keyword spotter, each given the echo of a room as augmentation with `np.convolve`; one worker loads
them, and two other processes are busy (iver56/torch-audiomentations#152).

Right: the input: `np.convolve` in `__getitem__` convolves 16,000 by 6,000 samples directly:
`scipy.signal.fftconvolve` (or `oaconvolve`), or convolve on the accelerator in batches, or make some echoes once;
that others use the cores may be said besides, but not alone, as the echoes are the cause on a quiet machine too.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = (
    "torch",
    "np.convolve adds a room's echo of 6,000 samples to each recording; two other processes are busy",
    "monitor",
)
BUSY = "plain without"


def train(run):
    from scipy import signal

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    words = generator.normal(size=(320, 16_000)).astype("float32")
    rooms = generator.normal(size=(12, 6000)).astype("float32") * np.exp(-np.arange(6000, dtype="float32") / 900)

    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 320

        def __getitem__(self, i):
            room = rooms[np.random.randint(12)]
            if run.does("without"):
                heard = signal.fftconvolve(words[i], room)
            else:
                heard = np.convolve(words[i], room)
            heard = heard[:16_000]
            return torch.from_numpy(heard / abs(heard).max())[None].float(), i % 20

    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, 32, 80, 16), torch.nn.ReLU(), torch.nn.Conv1d(32, 64, 3, 2), torch.nn.ReLU(),
        torch.nn.Conv1d(64, 64, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten(),
        torch.nn.Linear(64, 20)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Words(), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    with run.monitor() as monitor:
        for _ in range(2):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
