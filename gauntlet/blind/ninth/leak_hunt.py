"""Routes of taxis as lists of Python objects, which `collate` turns into tensors; a hunt for a leak ended weeks ago,
but `tracemalloc.start(25)` is still there, and an epoch takes several times as long as in spring.

Right: `tracemalloc` keeps a traceback of 25 frames for each object that Python makes: take `tracemalloc.start` out (or
start it for a few steps); the collation in Python is slow by it, and at best the second finding; not the network, not
garbage collection, and not a memory leak.
"""

import random
import tracemalloc
from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "tracemalloc, with 25 frames, was left on after a hunt for a leak", "run"


class Routes(torch.utils.data.Dataset):
    def __init__(self, count):
        draw = random.Random(0)
        self.routes = [[(draw.random(), draw.random()) for _ in range(draw.randint(30, 60))] for _ in range(count)]

    def __len__(self):
        return len(self.routes)

    def __getitem__(self, number):
        route = self.routes[number]
        legs = [
            {"from": start, "to": end, "long": ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5}
            for start, end in pairwise(route)
        ]
        return {"legs": legs, "long": sum(leg["long"] for leg in legs)}


def collate(routes):
    """Return the legs of all routes, padded, and the routes' lengths."""
    longest = max(len(route["legs"]) for route in routes)
    rows = []
    for route in routes:
        legs = [[*leg["from"], *leg["to"], leg["long"]] for leg in route["legs"]]
        rows.append(legs + [[0.0] * 5 for _ in range(longest - len(legs))])
    return torch.tensor(rows), torch.tensor([[route["long"]] for route in routes])


def train(run):
    torch.manual_seed(0)
    nn = torch.nn
    legs = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    head = nn.Linear(128, 1)
    optimizer = torch.optim.Adam([*legs.parameters(), *head.parameters()], 1e-3)
    loader = torch.utils.data.DataLoader(Routes(640), 32, shuffle=True, collate_fn=collate)
    if not run.does("without"):
        tracemalloc.start(25)
    run.start()
    for epoch in range(6):
        for routes, long in loader:
            loss = nn.functional.mse_loss(head(legs(routes).sum(1) / 50), long)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main(train)
