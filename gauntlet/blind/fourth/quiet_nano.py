"""A small GPT on a file of tokens that is mapped into memory, random pieces of it in each step; now and then a loss on
held-out text and a checkpoint. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "a validation of five batches and a checkpoint every 100 steps; the loss is read every ten"


def train(run):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for name, count in (("train", 400000), ("val", 40000)):
        rng.integers(0, 256, count, "uint16").tofile(folder() / f"{name}.bin")

    def piece(name):
        tokens = np.memmap(folder() / f"{name}.bin", "uint16", "r")
        starts = rng.integers(0, len(tokens) - 65, 16)
        block = torch.from_numpy(np.stack([tokens[at : at + 65].astype("int64") for at in starts]))
        return block[:, :-1], block[:, 1:]

    class Nano(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = torch.nn.Embedding(256, 96), torch.nn.Embedding(64, 96)
            layer = torch.nn.TransformerEncoderLayer(96, 4, 384, 0.0, "gelu", batch_first=True, norm_first=True)
            self.blocks = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = torch.nn.Linear(96, 256, bias=False)
            self.mask = torch.nn.Transformer.generate_square_subsequent_mask(64)

        def loss(self, x, y):
            hidden = self.blocks(self.embed(x) + self.place.weight, mask=self.mask, is_causal=True)
            return torch.nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), y.flatten())

    model = Nano()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)

    def check(step):
        with torch.no_grad():
            print(step, "held out", sum(model.loss(*piece("val")).item() for _ in range(5)) / 5)
        torch.save(model.state_dict(), folder() / "nano.pt")

    with run.monitor() as monitor:
        for step, (x, y) in enumerate(monitor.batches(piece("train") for _ in range(300))):
            loss = model.loss(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if run.does("without"):
                continue
            if step % 10 == 0:
                print(step, loss.item())
            if step % 100 == 99:
                check(step)


if __name__ == "__main__":
    main(train)
