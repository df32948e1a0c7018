"""Two workers of one job that wait for each other at every step, each reading its own files."""

import multiprocessing
import os
import time
from pathlib import Path

from gpu_util_callback import GpuUtilMonitor

FILES = [f"part-{number:02d}" for number in range(16)]
STEPS, READ_S, WORK_S = 40, 0.008, 0.02
PORT = "29511"  # of a rendezvous that nobody opens: only its name is told


def train(log_dir: Path, shares: list[list[str]]) -> None:
    """Train once; worker k reads `shares[k]` in every step.

    Raises: RuntimeError where a worker failed.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(shares), timeout=60)
    workers = [context.Process(target=_work, args=(str(log_dir), rank, shares, barrier)) for rank in range(len(shares))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    if any(worker.exitcode != 0 for worker in workers):
        raise RuntimeError(f"workers ended with {[worker.exitcode for worker in workers]}")


def _work(log_dir: str, rank: int, shares: list[list[str]], barrier) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(shares)), MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    os.environ.pop("TF_CONFIG", None)

    def batches():
        for _ in range(STEPS):
            time.sleep(READ_S * len(shares[rank]))
            yield shares[rank]

    with GpuUtilMonitor(log_dir, trace="off", report=False) as monitor:
        barrier.wait()
        for _ in monitor.batches(batches()):
            time.sleep(WORK_S)
            barrier.wait()  # where gradients are exchanged
