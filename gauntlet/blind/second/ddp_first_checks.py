"""Two ranks over gloo; the first alone checks the model on held-out data now and then, the second waits (DDP forum
threads).

Right: rank 0's validation holds up both ranks: share it between the ranks, or do it less often.
"""

import os

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "rank 0 alone validates every 20 steps", "torchrun"


def train(run):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    first = int(os.environ["RANK"]) == 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.01)
    data = torch.utils.data.TensorDataset(torch.randn(3200, 64), torch.randint(0, 2, (3200,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    held = torch.randn(200, 512, 64)
    with run.monitor() as monitor:
        for step, (x, y) in enumerate(monitor.batches(loader)):
            loss = torch.nn.functional.cross_entropy(parallel(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if first and step % 20 == 19 and not run.does("without"):
                with monitor.phase("validation"), torch.no_grad():
                    for batch in held:
                        model(batch)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
