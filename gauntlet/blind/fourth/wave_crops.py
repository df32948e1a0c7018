"""Bird calls: each sample is one second of a long recording, which is read and scaled whole to cut it out (a
`librosa.load` without `offset=` and `duration=`, as in many a notebook).

Right: the DataLoader reads and converts in the training process far more than it uses, at `__getitem__`: read only the
second (`mmap=True`, an offset), or cut the files once; workers as far as there are cores.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "__getitem__ reads and scales 40 s of sound and uses one of them", "monitor"


def train(run):
    from scipy.io import wavfile

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for i in range(8):
        wavfile.write(folder() / f"site-{i}.wav", 44100, rng.integers(-9000, 9000, 40 * 44100).astype("int16"))

    class Calls(torch.utils.data.Dataset):
        def __init__(self, count):
            self.calls = [(folder() / f"site-{i % 8}.wav", int(rng.integers(0, 39 * 44100))) for i in range(count)]

        def __len__(self):
            return len(self.calls)

        def __getitem__(self, i):
            path, start = self.calls[i]
            if run.does("without"):
                _, sound = wavfile.read(path, mmap=True)
                return sound[start : start + 44100].astype("float32") / 32768, i % 8
            _, sound = wavfile.read(path)
            sound = sound.astype("float32") / 32768
            return sound[start : start + 44100], i % 8

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, 4), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2), torch.nn.ReLU()
    )
    head, window = torch.nn.Linear(16, 8), torch.hann_window(512)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
    loader = torch.utils.data.DataLoader(Calls(480), batch_size=16, shuffle=True)
    with run.monitor() as monitor:
        for epoch in range(5):
            for sounds, sites in monitor.batches(loader):
                spectra = torch.stft(sounds, 512, 400, window=window, return_complex=True).abs().log1p()
                logits = head(model(spectra[:, None]).mean((2, 3)))
                loss = torch.nn.functional.cross_entropy(logits, sites)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    main(train)
