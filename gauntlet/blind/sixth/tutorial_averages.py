"""Two ranks over gloo that average their gradients as the tutorial on distributed applications does, tensor by tensor
(pytorch/pytorch#4406: "unfortunately, it's slow").

Right: each step ends with an exchange for each of 160 small tensors, one after another, at `all_reduce` in
`average_gradients`: wrap the model in DistributedDataParallel, which joins them to a few and sends them during
`backward`, or join them to one tensor; nothing about the input, and no rank is the slower one.
"""

from gauntlet.blind import main
from gauntlet.helpers import rows, torch

BACKEND, CAUSE, USES = "torch", "each of 160 gradients is exchanged on its own after each step", "torchrun"


def train(run):
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(48), torch.nn.Linear(48, 48)

        def forward(self, x):
            return x + torch.relu(self.linear(self.norm(x)))

    model = torch.nn.Sequential(torch.nn.Linear(32, 48), *[Block() for _ in range(39)], torch.nn.Linear(48, 1))
    if run.does("without"):
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows(12800, 32)))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=64, sampler=sampler)

    def average_gradients():
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()

    with run.monitor() as monitor:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in monitor.batches(loader):
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                if not run.does("without"):
                    average_gradients()
                optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
