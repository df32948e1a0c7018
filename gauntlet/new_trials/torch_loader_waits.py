# try: num_workers=2
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 6_400

    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.ones(32), torch.ones(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        for x, y in DataLoader(Rows(), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
