"""A small network learns from a large one: the teacher judges each batch of spectrograms anew, since a worker masks
and shifts them by chance, and no gradient goes through it. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: what the teacher says cannot be kept, as each batch is
another one, and the worker is ahead of the steps; not "make the samples once", not more workers, and not that the loss
is read every tenth step.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "a teacher judges each batch anew, of samples that a worker masks and shifts by chance"


class Sounds(torch.utils.data.Dataset):
    def __init__(self, count, changed):
        self.sounds, self.kinds, self.changed = torch.randn(count, 1, 40, 64), torch.randint(0, 10, (count,)), changed

    def __len__(self):
        return len(self.sounds)

    def __getitem__(self, number):
        sound = self.sounds[number]
        if self.changed:
            sound = sound.roll(int(torch.randint(0, 64, ())), -1)
            first = int(torch.randint(0, 32, ()))
            sound[:, first : first + 8] = 0
        return sound, self.kinds[number]


def network(*widths):
    nn, layers, before = torch.nn, [], 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def train(run):
    torch.manual_seed(0)
    functional = torch.nn.functional
    teacher, student = network(24, 48, 64).eval(), network(16, 32, 48)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
    changed = not run.does("without")
    loader = torch.utils.data.DataLoader(
        Sounds(640, changed), 32, shuffle=True, num_workers=int(changed), persistent_workers=changed
    )
    with run.monitor() as monitor:
        for epoch in range(5):
            for number, (sound, kind) in enumerate(monitor.batches(loader)):
                with torch.no_grad():
                    wanted = functional.softmax(teacher(sound) / 4, -1)
                scores = student(sound)
                distance = functional.kl_div(functional.log_softmax(scores / 4, -1), wanted, reduction="batchmean")
                loss = 0.9 * 16 * distance + 0.1 * functional.cross_entropy(scores, kind)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number % 10 == 9:
                    print(f"{epoch} {number}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
