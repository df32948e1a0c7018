"""One worker of a job of several processes: a loop of its own under GpuUtilMonitor.

Arguments: framework, log directory, rank, workers, rank of the worker whose input is slow.
WALL_OFFSET_MS: how far this worker's wall clock is ahead of the machine's.
FLUSH_S: how often it writes, into an object store, too.
WORK_MS: how long the slow worker computes in each step, its input being as fast as the others'.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

OFFSET_NS = round(float(os.environ.get("WALL_OFFSET_MS", "0")) * 1e6)
if OFFSET_NS:  # before anybody takes the clock's functions
    time.time_ns = lambda real=time.time_ns: real() + OFFSET_NS
    time.time = lambda real=time.time: real() + OFFSET_NS / 1e9

from loops import jax_loop, late_batches, tensorflow_loop, torch_loop  # noqa: E402

from gpu_util_callback import GpuUtilMonitor  # noqa: E402
from gpu_util_callback.recorder import outputs, recorder  # noqa: E402

if "FLUSH_S" in os.environ:
    recorder.FLUSH_S = outputs.FLUSH_S = outputs.REMOTE_FLUSH_S = float(os.environ["FLUSH_S"])

framework, log_dir = sys.argv[1:3]
rank, workers, slow = (int(argument) for argument in sys.argv[3:6])
STEPS = int(os.environ.get("STEPS", "25"))
WORK_S = float(os.environ.get("WORK_MS", "0")) / 1e3 if rank == slow else 0.0
DELAYS_S = (0.025, 0.055) if rank == slow and not WORK_S else (0.0, 0.0)


def batches():
    return late_batches(rank, STEPS, DELAYS_S)


def compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.ones((64, 64)) @ np.ones((64, 64))


def tensorflow() -> None:
    """`MultiWorkerMirroredStrategy` in a custom loop; the job is known from TF_CONFIG."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tensorflow_loop(log_dir, strategy, batches)


def torch() -> None:
    """`DistributedDataParallel` over gloo; the rendezvous is in the environment."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=workers)
    parallel = torch.nn.parallel.DistributedDataParallel
    torch_loop(log_dir, parallel, batches(), lambda: compute(WORK_S))
    distributed.destroy_process_group()


def jax() -> None:
    """Several JAX processes; JAX alone knows of the job."""
    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ["COORDINATOR"], workers, rank)
    jax_loop(log_dir, batches(), multihost_utils.process_allgather)


def alone() -> None:
    """A rank of a sweep: it waits for nobody, and is only told that it is one of several."""
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for _ in monitor.batches(late_batches(rank, STEPS, (0.01, 0.02) if rank == slow else (0.0, 0.0))):
            time.sleep(0.008 if rank != slow else 0.0)


if __name__ == "__main__":
    globals()[framework]()
    print("RESULT done", json.dumps({"rank": rank}), flush=True)
