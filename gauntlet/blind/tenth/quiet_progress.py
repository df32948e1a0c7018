"""Captions of pictures with a recurrent decoder; a bar of `tqdm` shows the loss after each step, the gradients are
clipped, and each epoch ends with a look at 64 held-out captions. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the loss is there when the step has ended (there is no
card to wait for), and the bar takes microseconds; not `loss.item()` in each step, not the bar, not the clipping, and
not the small validation.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "a progress bar reads and shows the loss after each step"


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.picture = torch.nn.Embedding(1200, 96), torch.nn.Linear(256, 160)
        self.cells, self.head = torch.nn.GRU(96, 160, batch_first=True), torch.nn.Linear(160, 1200)

    def forward(self, picture, caption):
        start = torch.tanh(self.picture(picture))[None]
        return self.head(self.cells(self.words(caption), start)[0])


def train(run):
    import tqdm

    torch.manual_seed(0)
    data, functional = torch.utils.data, torch.nn.functional
    pictures, captions = torch.randn(1344, 256), torch.randint(0, 1200, (1344, 17))
    loader = data.DataLoader(data.TensorDataset(pictures[64:], captions[64:]), 32, shuffle=True)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss_of(picture, caption):
        scores = model(picture, caption[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), caption[:, 1:].flatten())

    with run.monitor() as monitor:
        for epoch in range(8):
            bar = tqdm.tqdm(monitor.batches(loader), total=len(loader), disable=run.does("without"))
            for picture, caption in bar:
                loss = loss_of(picture, caption)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if not run.does("without"):
                    bar.set_postfix(epoch=epoch, loss=loss.item())
            if not run.does("without"):
                with torch.no_grad(), monitor.phase("validation"):
                    print(f"held out: {loss_of(pictures[:64], captions[:64]).item():.3f}")


if __name__ == "__main__":
    main(train)
