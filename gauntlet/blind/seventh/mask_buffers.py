"""Two ranks over gloo train a small language model whose layers each register their causal mask, of the greatest
length that was planned, as a buffer: DistributedDataParallel sends it before each forward pass
(karpathy/nanoGPT#151, ultralytics/ultralytics#24410).

Right: in the step: DistributedDataParallel broadcasts the buffers (four masks of 2048 x 2048) from rank 0 before each
forward pass: `broadcast_buffers=False`, or no buffer for what never changes (`is_causal=True`, a plain attribute), or
smaller ones; not the exchange of gradients, not the input, and not that a rank is slower than the other.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "four masks registered as buffers are broadcast before each forward pass", "torchrun"


def train(run):
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 512, (1024, 65)))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = torch.nn.LayerNorm(128), torch.nn.LayerNorm(128)
            self.queries, self.mix = torch.nn.Linear(128, 384), torch.nn.Linear(128, 128)
            self.wide = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128))
            self.register_buffer("mask", torch.tril(torch.ones(2048, 2048)))

        def forward(self, x):
            count, length = x.shape[:2]
            q, k, v = self.queries(self.norm(x)).view(count, length, 3, 4, 32).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) / 32**0.5
            scores = scores.masked_fill(self.mask[:length, :length] == 0, -1e9)
            x = x + self.mix((scores.softmax(-1) @ v).transpose(1, 2).reshape(count, length, 128))
            return x + self.wide(self.norm2(x))

    network = torch.nn.Sequential(torch.nn.Embedding(512, 128), *(Layer() for _ in range(4)), torch.nn.Linear(128, 512))
    parallel = torch.nn.parallel.DistributedDataParallel(network, broadcast_buffers=not run.does("without"))
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-3)
    sampler = torch.utils.data.DistributedSampler(tokens)
    loader = torch.utils.data.DataLoader(tokens, batch_size=8, sampler=sampler)
    with run.monitor() as monitor:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for text in monitor.batches(loader):
                logits = parallel(text[:, :-1])
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
