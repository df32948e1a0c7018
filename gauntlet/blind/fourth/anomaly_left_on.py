"""A forecaster for loads of a power grid that is still trained with PyTorch's anomaly detection, once switched on to
find a NaN (forum: "training three times slower since yesterday").

Right: the step itself: `torch.autograd.set_detect_anomaly(True)` was left on: switch it off; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "torch.autograd.set_detect_anomaly(True) was left on", "monitor"


def train(run):
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(not run.does("without"))
    hours = np.arange(9000)
    load = np.sin(hours / 3.8) + np.sin(hours / 26.7) + np.random.default_rng(0).normal(0, 0.1, len(hours))
    series = torch.tensor(load, dtype=torch.float32)
    windows = series.unfold(0, 73, 1)
    data = torch.utils.data.TensorDataset(windows[:, :72], windows[:, 72:])

    class Block(torch.nn.Module):
        def __init__(self, width, reach):
            super().__init__()
            self.first = torch.nn.Conv1d(width, width, 3, padding=reach, dilation=reach)
            self.gate = torch.nn.Conv1d(width, width, 3, padding=reach, dilation=reach)
            self.out = torch.nn.Conv1d(width, width, 1)

        def forward(self, x):
            hidden = torch.tanh(self.first(x)) * torch.sigmoid(self.gate(x))
            return x + self.out(hidden)

    class Forecaster(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Conv1d(1, 8, 1)
            self.blocks = torch.nn.Sequential(*(Block(8, 2**i) for i in range(5)))
            self.out = torch.nn.Linear(8, 1)

        def forward(self, x):
            mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
            hidden = self.blocks(self.embed(((x - mean) / spread)[:, None]))
            return self.out(hidden[:, :, -1]) * spread + mean

    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 2 * 279)
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    with run.monitor() as monitor:
        for _ in range(2):
            for past, after in monitor.batches(loader):
                loss = torch.nn.functional.huber_loss(model(past), after)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()


if __name__ == "__main__":
    main(train)
