"""A small transformer in plain PyTorch over token blocks in memory. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "", "monitor"


def train(run):
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (320, 33))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=16, shuffle=True)
    embed = torch.nn.Embedding(256, 128)
    body = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2)
    head = torch.nn.Linear(128, 256)
    parameters = [p for part in (embed, body, head) for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    with run.monitor() as monitor:
        for _ in range(2):
            for (block,) in monitor.batches(loader):
                logits = head(body(embed(block[:, :-1])))
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()


if __name__ == "__main__":
    main(train)
