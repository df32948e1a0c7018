"""Sums of numbers learnt by a small transformer on a curriculum: each epoch's sequences are longer than those of the
one before, so that the steps take longer and longer, as they are meant to. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: steps grow with the length of the sequences; not a leak,
not throttling by heat or by neighbours, not shapes that are compiled anew (nothing is compiled), not the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "each epoch has longer sequences, so that the steps take longer and longer"


class Adder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = torch.nn.Embedding(14, 96), torch.nn.Embedding(200, 96)
        layer = torch.nn.TransformerEncoderLayer(96, 4, 256, 0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = torch.nn.Linear(96, 14)

    def forward(self, text):
        return self.head(self.encoder(self.symbols(text) + self.places(torch.arange(text.shape[1]))))


def train(run):
    torch.manual_seed(0)
    model = Adder()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    with run.monitor() as monitor:
        for epoch in range(6):
            length = 62 if run.does("without") else 12 + 20 * epoch
            sums = torch.randint(0, 14, (32 * 20, length))
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(sums, sums.flip(1)), 32, shuffle=True)
            for text, answer in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(text).flatten(0, 1), answer.flatten())
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            print(f"length {length}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
