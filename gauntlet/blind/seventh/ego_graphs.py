"""A network of accounts as a networkx graph; for each account and in each epoch its surroundings are cut out with
`nx.ego_graph` and made a matrix (pyg-team/pytorch_geometric#1034).

Right: the input: `nx.ego_graph` and `nx.to_numpy_array` in `__getitem__` walk through Python dictionaries, and find
the same surroundings in each epoch: cut them out once and keep them, or take them from a sparse matrix (or a sampler
in C++); not the network of the model.
"""

import functools

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "nx.ego_graph cuts out each account's surroundings anew in each epoch", "monitor"


def train(run):
    import networkx as nx

    torch.manual_seed(0)
    graph = nx.watts_strogatz_graph(1800, 6, 0.2, seed=0)
    features = np.random.default_rng(0).normal(size=(1800, 16)).astype("float32")

    def surroundings(account):
        around = nx.ego_graph(graph, account, radius=2)
        nodes = sorted(around, key=lambda node: (node != account, node))[:48]
        matrix = np.zeros((48, 48), "float32")
        matrix[: len(nodes), : len(nodes)] = nx.to_numpy_array(around, nodes) + np.eye(len(nodes))
        values = np.zeros((48, 16), "float32")
        values[: len(nodes)] = features[nodes]
        return matrix, values

    if run.does("without"):
        surroundings = functools.cache(surroundings)

    class Accounts(torch.utils.data.Dataset):
        def __len__(self):
            return 1800

        def __getitem__(self, account):
            matrix, values = surroundings(account)
            return torch.from_numpy(matrix), torch.from_numpy(values), account % 2

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = (torch.nn.Linear(*sizes) for sizes in ((16, 64), (64, 64), (64, 2)))

        def forward(self, matrix, values):
            matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1)
            hidden = torch.relu(self.first(matrix @ values))
            return self.head(torch.relu(self.second(matrix @ hidden))[:, 0])

    model = Network()
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Accounts(), batch_size=30, shuffle=True)
    with run.monitor() as monitor:
        for _ in range(10):
            for matrix, values, fraud in monitor.batches(loader):
                loss = torch.nn.functional.cross_entropy(model(matrix, values), fraud)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main(train)
