"""Two ranks over gloo with DistributedDataParallel, clipped gradients and a mean loss that the ranks agree on after
each epoch; the first saves the weights then, and the second waits for it. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the exchange of the gradients is the usual one, and the
ranks meet once an epoch for little.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, torch

BACKEND, CAUSE, USES = "torch", "", "torchrun"
NOISE = "after each epoch a reduced loss, a checkpoint of the first rank and a barrier"


def train(run):
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    photos = torch.from_numpy(images(1280, 40)).permute(0, 3, 1, 2) / 255

    def block(inside, outside):
        convolution = torch.nn.Conv2d(inside, outside, 3, padding=1)
        return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.MaxPool2d(2))

    network = torch.nn.Sequential(
        block(3, 24), block(24, 48), block(48, 96), torch.nn.Flatten(), torch.nn.Linear(2400, 10)
    )
    parallel = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.02, 0.9)
    data = torch.utils.data.TensorDataset(photos, torch.arange(1280) % 10)
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=64, sampler=sampler)

    with run.monitor() as monitor:
        for epoch in range(14):
            sampler.set_epoch(epoch)
            total = torch.zeros(())
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(parallel(x), y)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
                optimizer.step()
                total += loss.detach()
            if run.does("without"):
                continue
            distributed.all_reduce(total)
            if distributed.get_rank() == 0:
                torch.save(network.state_dict(), folder() / "weights.pt")
            distributed.barrier()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
