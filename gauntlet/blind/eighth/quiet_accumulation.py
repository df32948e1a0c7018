"""Lesions are told apart in photos; the memory of the card holds few of them, so that the gradients of four batches are
added up before each update, and clipped, and its loss is printed. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: four batches make one update as they should, the loss is
read once an update, and the photos come from memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "four batches make one update, whose gradients are clipped and whose loss is printed"


def train(run):
    torch.manual_seed(0)
    photos = torch.from_numpy(images(480, 64)).permute(0, 3, 1, 2).float() / 255
    data = torch.utils.data.TensorDataset(photos, torch.arange(480) % 7)
    loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
    layers, inside = [], 3
    for filters in (24, 48, 96):
        layers += [torch.nn.Conv2d(inside, filters, 3, 2, 1), torch.nn.GroupNorm(8, filters), torch.nn.SiLU()]
        layers += [torch.nn.Conv2d(filters, filters, 3, 1, 1), torch.nn.SiLU()]
        inside = filters
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(96, 7))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    every = 1 if run.does("without") else 4
    with run.monitor() as monitor:
        for _ in range(6):
            for number, (x, y) in enumerate(monitor.batches(loader), 1):
                loss = torch.nn.functional.cross_entropy(model(x), y) / every
                loss.backward()
                if number % every:
                    continue
                if every > 1:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    print(f"loss {every * loss.item():.3f}, rate {schedule.get_last_lr()[0]:.5f}")
                    schedule.step()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(train)
