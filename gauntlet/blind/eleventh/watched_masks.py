"""Two ranks by `torchrun` learn to outline organs; rank 0 draws the inputs and masks of its batch side by side into a
PNG after each step, to watch them in the browser, and both ranks are slow.

Right: rank 0 draws and writes a picture of its batch in each step, and rank 1 waits for it in the exchange of the
gradients: draw every 50th step, or once an epoch, or in a thread; not the exchange as such, not the input, which is in
memory, not that rank 1 is slow, and not the network.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "rank 0 draws a PNG of its batch in each step, and rank 1 waits", "torchrun"


def drawn(path, scans, masks, guesses):
    """Write scans, masks and guesses side by side, three times as large."""
    from PIL import Image

    rows = [torch.cat([scan, mask, guess], -1)[0] for scan, mask, guess in zip(scans, masks, guesses, strict=True)]
    picture = torch.cat(rows).clamp(0, 1).mul(255).byte().numpy()
    image = Image.fromarray(picture)
    image.resize((3 * image.width, 3 * image.height), Image.Resampling.BICUBIC).save(path)


def train(run):
    data, distributed, nn = torch.utils.data, torch.distributed, torch.nn
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    scans = torch.rand(640, 1, 48, 48)
    masks = (torch.nn.functional.avg_pool2d(scans, 5, 1, 2) > 0.5).float()
    scans = data.TensorDataset(scans, masks)
    sampler = data.DistributedSampler(scans)
    loader = data.DataLoader(scans, 8, sampler=sampler)
    layers = []
    for one, other in ((1, 16), (16, 16), (16, 16)):
        layers += [nn.Conv2d(one, other, 3, padding=1), nn.ReLU()]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Conv2d(16, 1, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    path, every = folder(), 50 if run.does("without") else 1
    with run.monitor() as monitor:
        for epoch in range(7):
            sampler.set_epoch(epoch)
            for number, (scan, mask) in enumerate(monitor.batches(loader)):
                guess = model(scan)
                loss = nn.functional.binary_cross_entropy_with_logits(guess, mask)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if distributed.get_rank() == 0 and number % every == 0:
                    drawn(path / "last.png", scan, mask, guess.detach().sigmoid())
            if distributed.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.3f}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
