"""Two ranks by `torchrun`; the first one saves the whole model every five steps, as the cluster may stop the job at
any time, and the second one's card looks busy meanwhile, in an exchange that does not end.

Right: rank 0 writes the model, 60 MB of which are frozen embeddings, every five steps, and rank 1 waits for it in the
next exchange: save less often, or only what is trained, or in a thread or process of its own; not the exchange of
gradients as such (and not `bucket_cap_mb`), not the input, and not that rank 1 is slow.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "rank 0 saves the model every five steps, and rank 1 waits", "torchrun"


def train(run):
    data, distributed, nn = torch.utils.data, torch.distributed, torch.nn
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    words = data.TensorDataset(torch.randint(0, 60_000, (3200, 24)), torch.randint(0, 8, (3200,)))
    sampler = data.DistributedSampler(words)
    loader = data.DataLoader(words, 16, sampler=sampler)
    model = nn.Sequential(
        *(nn.Embedding.from_pretrained(torch.randn(60_000, 256)), nn.Conv1d(24, 32, 5), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(32 * 252, 32), nn.ReLU(), nn.Linear(32, 8)),
    )
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.module[1:].parameters(), 1e-4)
    path = folder() / "last.pt"
    every = 100 if run.does("without") else 5
    with run.monitor() as monitor:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for number, (word, kind) in enumerate(monitor.batches(loader)):
                loss = nn.functional.cross_entropy(model(word), kind)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if distributed.get_rank() == 0 and number % every == every - 1:
                    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
            if distributed.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.3f}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
