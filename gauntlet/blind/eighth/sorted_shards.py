"""Two ranks over gloo, each with its own shard of the texts; the first card is at 100 %, the second at a third, and two
cards are hardly faster than one (huggingface/transformers#10385, pytorch/pytorch#67253).

Right: rank 0 has all the long texts, as the shards were cut from a list sorted by length, and rank 1 waits for it at
each exchange of gradients: deal the texts out in turn (`texts[rank::2]`, or a sampler that gives both ranks batches of
similar length); not the exchange itself, not the input of rank 0, which is in memory, and not `broadcast_buffers`.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "rank 0 has all the long texts, and rank 1 waits for it in each step", "torchrun"


def train(run):
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    lengths = -np.sort(-np.clip(generator.lognormal(3.6, 1.0, 1920).astype(int), 6, 240))
    texts = [torch.from_numpy(generator.integers(1, 2000, length)) for length in lengths]
    mine = texts[rank::2] if run.does("without") else texts[960 * rank : 960 * rank + 960]
    batches = [torch.nn.utils.rnn.pad_sequence(mine[i : i + 16], batch_first=True) for i in range(0, 960, 16)]
    order = np.random.default_rng(1)

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(2000, 96)
            layer = torch.nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(96, 4)

        def forward(self, text):
            return self.head(self.encoder(self.words(text), src_key_padding_mask=text == 0)[:, 0])

    model = torch.nn.parallel.DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with run.monitor() as monitor:
        for _ in range(2):
            for text in monitor.batches([batches[i] for i in order.permutation(60)]):
                loss = torch.nn.functional.cross_entropy(model(text), text[:, 0] % 4)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
