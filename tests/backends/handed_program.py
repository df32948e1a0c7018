"""DataLoaders whose batches are finished, or not, when they are asked for: nothing is left to time.

A batch is made once there is a permit for it; in `late` runs that is
when it is asked for, in `ready` runs at once, and in `turns` runs the batches of one of two workers
come late while those of the other lie in the queue.
"""

import multiprocessing
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import torch
from injected import report
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Batches

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings

FOLDER = Path(tempfile.mkdtemp(prefix="handed-"))
COUNT = 32  # each of so many is looked at
permits = None  # of a run
way = ""
take, shut_down = Batches._next_data, Batches._shutdown_workers


class Made(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, k):
        if way == "late" or (way == "turns" and k % 2 == 0):
            permits.acquire()
        return np.ones(8, "float32"), np.ones(1, "float32")


def here(iterator, number):
    return len(iterator._task_info.get(number, ())) == 2


def next_data(iterator):
    """Lets what is asked for be made, and comes back when the next may be asked for."""
    wanted = iterator._rcvd_idx
    if wanted < COUNT and (way == "late" or (way == "turns" and wanted % 2 == 0)):
        permits.release()
    data = take(iterator)
    coming = iterator._rcvd_idx + (way == "turns" and iterator._rcvd_idx % 2 == 0)
    until = time.monotonic() + 60
    while way != "late" and coming < COUNT and time.monotonic() < until:
        if here(iterator, coming) or iterator._worker_result_queue._reader.poll(0.01):
            break
    return data


def let_go(iterator):
    """A worker that waits with the next epoch's batches would be waited for, five seconds."""
    for _ in range(COUNT):
        permits.release()
    shut_down(iterator)


def run(name, workers):
    global permits
    permits = multiprocessing.get_context("fork").Semaphore(0)
    loader = DataLoader(
        Made(), batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    if name.startswith("fit"):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        # Else Keras builds the model from a batch of workers of its own, which take permits, too.
        model.fit(np.ones((1, 8), "float32"), np.ones((1, 1), "float32"), verbose=0)
        batches = DataLoader(Made(), batch_size=1, num_workers=workers, multiprocessing_context="fork")
        model.fit(batches, verbose=0, callbacks=[GpuUtilCallback(FOLDER / name, report=False)])
    else:
        with GpuUtilMonitor(FOLDER / name, framework="torch", report=False) as monitor:
            for _ in monitor.batches(loader):
                pass
    [recording] = read_recordings(FOLDER / name)
    report(name, steps=len(recording.steps["step"]), fit=recording.facts["fit"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    Batches._next_data, Batches._shutdown_workers = next_data, let_go
    for way, workers in (("late", 1), ("ready", 1), ("turns", 2)):
        run(f"loop/{way}", workers)
    for way, workers in (("late", 1), ("ready", 1)):
        run(f"fit/{way}", workers)
    way = "ready"
    run("loop/none", 0)
