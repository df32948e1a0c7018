"""Graphs of a list joined to a batch in a collate function of one's own, edge by edge (pyg-
team/pytorch_geometric#802).

Right: the DataLoader collates in the training process; `num_workers`, or a collate without the loop.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "collate_fn joins graphs edge by edge", "monitor"


def join(graphs):
    nodes, edges, offset = [], [], 0
    for x, pairs in graphs:
        nodes.append(x)
        for a, b in pairs.tolist():
            edges.append([a + offset, b + offset])
        offset += len(x)
    return torch.cat(nodes), torch.tensor(edges).T, len(graphs)


def train(run):
    torch.manual_seed(0)
    graphs = [(torch.randn(28, 16), torch.randint(0, 28, (150, 2))) for _ in range(640)]
    if run.does("without"):
        batches = [join(graphs[i : i + 32]) for i in range(0, 640, 32)]
        loader = torch.utils.data.DataLoader(batches, batch_size=None, shuffle=True)
    else:
        loader = torch.utils.data.DataLoader(graphs, batch_size=32, shuffle=True, collate_fn=join)
    first, second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 2)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    with run.monitor() as monitor:
        for _ in range(10):
            for x, (source, target), count in monitor.batches(loader):
                hidden = torch.relu(first(x))
                mixed = torch.zeros_like(hidden).index_add(0, target, hidden[source])
                logits = second(mixed.view(count, -1, 64).mean(1))
                loss = torch.nn.functional.cross_entropy(logits, torch.zeros(count, dtype=torch.long))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert np.isfinite(loss.item())


if __name__ == "__main__":
    main(train)
