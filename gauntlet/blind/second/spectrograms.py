"""Recordings turned into log spectrograms with numpy at each access, though two workers do it (a speech trainer's
thread).

Right: the workers do not keep up, and the cores are full: compute the spectrograms once; not "more workers" on two
cores.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "two workers compute a spectrogram for each sample", "monitor"


def spectrogram(wave):
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::64] * np.hanning(512)
    return np.log1p(np.abs(np.fft.rfft(frames, 1024))[:, :64]).astype("float32")


class Recordings:
    def __init__(self, waves, ready):
        self.waves, self.ready = waves, ready

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return (self.ready[i % 40] if self.ready else spectrogram(self.waves[i % 40])), i % 4


def train(run):
    waves = np.random.default_rng(0).standard_normal((40, 32000))
    ready = [spectrogram(wave) for wave in waves] if run.does("without") else []
    data = Recordings(waves, ready)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor() as monitor:
        for _ in range(3):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(x).mean(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
