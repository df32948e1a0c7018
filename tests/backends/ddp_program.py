"""One rank of Keras' torch backend over several processes, as Keras' guide does it, or with `fit`.

First the one, then the other. Arguments: folder, rank, workers, rank whose input is slow.
"""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np
import torch
from torch import distributed

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor

folder = sys.argv[1]
rank, workers, slow = (int(argument) for argument in sys.argv[2:5])
STEPS, BATCH, WIDTH = 20, 8, 16


class Slow(torch.utils.data.Dataset):
    """Batches whose making takes 20 to 50 ms on the slow rank."""

    def __init__(self):
        random = np.random.default_rng(rank)
        self.delays_s = random.uniform(0.02, 0.05, STEPS * workers) / BATCH

    def __len__(self):
        return STEPS * BATCH * workers

    def __getitem__(self, k):
        if rank == slow:
            time.sleep(self.delays_s[k // BATCH])
        return np.ones(WIDTH, np.float32), np.ones(1, np.float32)


def loader() -> torch.utils.data.DataLoader:
    data = Slow()
    sampler = torch.utils.data.distributed.DistributedSampler(data, workers, rank, shuffle=False)
    return torch.utils.data.DataLoader(data, BATCH, sampler=sampler)


def build() -> keras.Model:
    return keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])


def guide() -> None:
    """The Keras model inside `DistributedDataParallel`, in a loop of one's own."""
    model = build()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), 1e-3)
    with GpuUtilMonitor(f"{folder}/guide", report=False) as monitor:
        for x, y in monitor.batches(loader()):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parallel(x), y)
            loss.backward()
            optimizer.step()
    print("RESULT guide", json.dumps(weights(model)), flush=True)


class Averaging(keras.Sequential):
    """A model whose gradients are averaged over all ranks, as DistributedDataParallel does it."""

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        loss.backward()
        variables = self.trainable_weights
        gradients = [variable.value.grad for variable in variables]
        for gradient in gradients:
            distributed.all_reduce(gradient)
            gradient /= workers
        with torch.no_grad():
            self.optimizer.apply(gradients, variables)
        return {"loss": loss.detach()}


def fit() -> None:
    """`fit` in every process, the callback in every process."""
    model = Averaging([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(loader(), verbose=0, callbacks=[GpuUtilCallback(f"{folder}/fit", report=False)])
    print("RESULT fit", json.dumps(weights(model)), flush=True)


def weights(model: keras.Model) -> list[float]:
    return [round(float(np.sum(one)), 5) for one in model.get_weights()]


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    distributed.init_process_group("gloo", rank=rank, world_size=workers)
    guide()
    fit()
    distributed.destroy_process_group()
