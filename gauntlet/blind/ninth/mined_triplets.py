"""Faces are told apart with a triplet loss whose hard triplets are looked for in the batch, as in the well-known
example (adambielski/siamese-triplet); a card is at 15 %, and larger batches make it worse.

Right: between the forward and the backward pass the embeddings are moved to NumPy, and Python loops over all pairs of
the batch for the hardest negative: mine with tensor operations on the device (distance matrix, mask, `min`); not the
loader, which has its images in memory, not the size of the network, and not more workers.
"""

from itertools import combinations

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "hard triplets are looked for in Python loops over all pairs in each step", "monitor"


def mined(embeddings, labels):
    """Return the triplets (anchor, positive, hardest negative) of a batch."""
    embeddings, labels = embeddings.detach().cpu().numpy(), labels.cpu().numpy()
    triplets = []
    for label in set(labels.tolist()):
        inside, outside = np.where(labels == label)[0], np.where(labels != label)[0]
        for anchor, positive in combinations(inside, 2):
            near = np.sum((embeddings[anchor] - embeddings[positive]) ** 2)
            losses = [near - np.sum((embeddings[anchor] - embeddings[other]) ** 2) + 0.5 for other in outside]
            hardest = int(np.argmax(losses))
            if losses[hardest] > 0:
                triplets.append([anchor, positive, outside[hardest]])
    return torch.tensor(np.array(triplets or [[0, 1, len(labels) - 1]]))


def mined_by_tensors(embeddings, labels):
    """Return the same triplets."""
    with torch.no_grad():
        away = torch.cdist(embeddings, embeddings) ** 2
        same = labels[:, None] == labels
        hardest = away.masked_fill(same, torch.inf).argmin(1)
        anchor, positive = torch.where(same.triu(1))
        kept = away[anchor, positive] + 0.5 > away[anchor, hardest[anchor]]
        return torch.stack([anchor, positive, hardest[anchor]], 1)[kept]


def train(run):
    torch.manual_seed(0)
    faces, people = torch.randn(960, 3, 32, 32), torch.arange(960) % 80
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(48 * 64, 64)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    find = mined_by_tensors if run.does("without") else mined

    def batches():
        for _ in range(80):
            chosen = torch.randperm(80)[:16]
            yield torch.cat([torch.where(people == person)[0][:4] for person in chosen])

    with run.monitor() as monitor:
        for rows in monitor.batches(batches()):
            embeddings = nn.functional.normalize(model(faces[rows]))
            triplets = find(embeddings, people[rows])
            anchor, positive, negative = embeddings[triplets].unbind(1)
            loss = ((anchor - positive) ** 2 - (anchor - negative) ** 2).sum(1).add(0.5).relu().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(train)
