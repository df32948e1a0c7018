"""Cross-validation in PyTorch whose loaders start their workers anew in each short epoch (RIDE-
LongTailRecognition#33).

Right: workers start in each epoch: `persistent_workers=True`, or none for data in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "DataLoader workers start anew in each short epoch", "monitor"


def train(run):
    torch.manual_seed(0)
    x, y = torch.randn(1200, 32), torch.randint(0, 2, (1200,))
    data = torch.utils.data.TensorDataset(x, y)
    with run.monitor() as monitor:
        for fold in range(3):
            kept = torch.utils.data.Subset(data, np.flatnonzero(np.arange(1200) % 3 != fold).tolist())
            loader = torch.utils.data.DataLoader(
                kept, batch_size=32, shuffle=True, num_workers=2, persistent_workers=run.does("without")
            )
            model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(12):
                for features, labels in monitor.batches(loader):
                    loss = torch.nn.functional.cross_entropy(model(features), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()


if __name__ == "__main__":
    main(train)
