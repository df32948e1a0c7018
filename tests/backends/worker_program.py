"""One worker of a job of several processes: a loop of its own under GpuUtilMonitor.

Arguments: framework, log directory, rank, workers, rank of the worker whose input is slow.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from gpu_util_callback import GpuUtilMonitor

framework, log_dir = sys.argv[1:3]
rank, workers, slow = (int(argument) for argument in sys.argv[3:6])
STEPS = int(os.environ.get("STEPS", "25"))
DELAY_S = 0.040 if rank == slow else 0.0
BATCH, WIDTH = 8, 16


def batches():
    for _ in range(STEPS):
        time.sleep(DELAY_S)
        yield np.ones((BATCH, WIDTH), np.float32)


def tensorflow() -> None:
    """`MultiWorkerMirroredStrategy` in a custom loop; the job is known from TF_CONFIG."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if rank == 0:
        _make_a_callback()
    with strategy.scope():
        weights = tf.Variable(tf.ones((WIDTH, 1)))
    signature = tf.TensorSpec((BATCH, WIDTH), tf.float32)
    make = lambda _: tf.data.Dataset.from_generator(batches, output_signature=signature)  # noqa: E731
    dataset = strategy.distribute_datasets_from_function(make)

    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(1e-3 * gradient)

    @tf.function
    def train_step(x):
        strategy.run(replica_step, args=(x,))

    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for x in monitor.batches(dataset):
            train_step(x)


def _make_a_callback() -> None:
    """Keras' own `fit` fails under this strategy before it calls anybody: it is said up front."""
    import logging

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gpu_util_callback").addHandler(handler)
    from gpu_util_callback import GpuUtilCallback

    GpuUtilCallback(log_dir)
    print("RESULT announced", json.dumps({"lines": lines}), flush=True)


def torch() -> None:
    """`DistributedDataParallel` over gloo; the rendezvous is in the environment."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", rank=rank, world_size=workers)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for x in monitor.batches(batches()):
            optimizer.zero_grad()
            (model(torch.from_numpy(x)) ** 2).mean().backward()
            optimizer.step()
    distributed.destroy_process_group()


def jax() -> None:
    """Several JAX processes; JAX alone knows of the job."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(os.environ["COORDINATOR"], workers, rank)
    step = jax.jit(lambda w, x: w - 1e-3 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))
    weights = jnp.ones((WIDTH, 1))
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for x in monitor.batches(batches()):
            weights = step(weights, x)
            multihost_utils.process_allgather(weights)


if __name__ == "__main__":
    globals()[framework]()
    print("RESULT done", json.dumps({"rank": rank}), flush=True)
