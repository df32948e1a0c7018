"""Two ranks over gloo that hand each other the scores of all their samples after each step, as Python objects, for a
running accuracy.

Right: each step ends with an exchange of pickled objects, at `all_gather_object`: gather every n-th step or at the end
of an epoch, or reduce two numbers in a tensor; nothing about the input and nothing about the gradients' exchange.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "all ranks' scores are gathered as Python objects after each step", "torchrun"


def train(run):
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(96, 128), torch.nn.ReLU(), torch.nn.Linear(128, 50))
    parallel = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(parallel.parameters())
    data = torch.utils.data.TensorDataset(torch.rand(51200, 96), torch.randint(0, 50, (51200,)))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=256, sampler=sampler)
    right = total = 0

    with run.monitor() as monitor:
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for x, y in monitor.batches(loader):
                logits = parallel(x)
                loss = torch.nn.functional.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if run.does("without"):
                    right += int((logits.argmax(1) == y).sum())
                    total += len(y)
                    continue
                scores = [
                    {"label": int(label), "scores": dict(enumerate(row))}
                    for label, row in zip(y.tolist(), logits.tolist(), strict=True)
                ]
                gathered = [None] * distributed.get_world_size()
                distributed.all_gather_object(gathered, scores)
                for one in itertools.chain(*gathered):
                    right += max(one["scores"], key=one["scores"].get) == one["label"]
                    total += 1
        assert np.isfinite(right / total)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
