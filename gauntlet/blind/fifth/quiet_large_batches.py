"""Few steps of many photos each, which one worker has ready in time; the loss is printed each time. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import io

from gauntlet.blind import main
from gauntlet.helpers import images, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "a worker collates 400 photos for each of 24 steps; the loss is printed after each"


def train(run):
    torch.manual_seed(0)
    photos = torch.from_numpy(images(1600, 48)).permute(0, 3, 1, 2).contiguous()

    class Photos(torch.utils.data.Dataset):
        def __len__(self):
            return 1600

        def __getitem__(self, i):
            return photos[i].float() / 255, i % 7

    def block(inside, outside):
        convolution = torch.nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outside), torch.nn.ReLU(), torch.nn.MaxPool2d(2))

    model = torch.nn.Sequential(
        block(3, 16), block(16, 32), block(32, 64), torch.nn.Flatten(), torch.nn.Linear(2304, 7)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    loader = torch.utils.data.DataLoader(Photos(), batch_size=400, shuffle=True, num_workers=1, persistent_workers=True)
    ready = list(loader) if run.does("without") else loader
    printed = io.StringIO()
    with run.monitor() as monitor:
        for epoch in range(6):
            for x, y in monitor.batches(ready):
                loss = torch.nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                print(f"epoch {epoch} loss {loss.item():.4f}", file=printed, flush=True)


if __name__ == "__main__":
    main(train)
