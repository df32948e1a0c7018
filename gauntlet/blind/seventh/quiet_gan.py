"""Two networks that play against each other, in a plain loop: their losses are printed every ten steps, and sixteen
samples are drawn and saved every thirty. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the second network's step is part of the method, the
losses are read seldom, and the samples take little.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, np, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "the losses are printed every ten steps, and sixteen samples are saved every thirty"


def train(run):
    torch.manual_seed(0)
    photos = torch.from_numpy(images(960, 32)).permute(0, 3, 1, 2) / 127.5 - 1
    nn = torch.nn
    maker = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(128, 1, 4), nn.Flatten(0)
    )  # fmt: skip
    making, judging = (torch.optim.Adam(one.parameters(), 2e-4, (0.5, 0.999)) for one in (maker, judge))
    loss_of = nn.BCEWithLogitsLoss()
    fixed = torch.randn(16, 64, 1, 1)
    data = torch.utils.data.TensorDataset(photos)
    loader = torch.utils.data.DataLoader(data, batch_size=48, shuffle=True)

    step = 0
    with run.monitor() as monitor:
        for _ in range(8):
            for (real,) in monitor.batches(loader):
                fake = maker(torch.randn(len(real), 64, 1, 1))
                judging.zero_grad()
                one = loss_of(judge(real), torch.ones(len(real))) + loss_of(
                    judge(fake.detach()), torch.zeros(len(real))
                )
                one.backward()
                judging.step()
                making.zero_grad()
                other = loss_of(judge(fake), torch.ones(len(real)))
                other.backward()
                making.step()
                step += 1
                if step % 10 == 0 and not run.does("without"):
                    print(f"step {step}: judge {one.item():.3f}, maker {other.item():.3f}")
                if step % 30 == 0 and not run.does("without"):
                    with torch.no_grad():
                        np.save(folder() / f"samples-{step}.npy", maker(fixed).numpy())


if __name__ == "__main__":
    main(train)
