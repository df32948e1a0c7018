"""A sound PyTorch loop on a machine whose cores two other processes use.

Right: other processes use the cores; nothing in the program, above all not its input.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES, BUSY = "torch", "two busy processes of others", "monitor", "plain"


def train(run):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(1600, 64, 16), torch.randn(1600, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    lstm, out = torch.nn.LSTM(16, 96, batch_first=True), torch.nn.Linear(96, 1)
    optimizer = torch.optim.Adam([*lstm.parameters(), *out.parameters()])
    with run.monitor() as monitor:
        for _ in range(4):
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.mse_loss(out(lstm(x)[0][:, -1]), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
