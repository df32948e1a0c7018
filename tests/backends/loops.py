"""The training loops that workers of a job run under GpuUtilMonitor, whoever has started them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpu_util_callback import GpuUtilMonitor

BATCH, WIDTH = 8, 16


def late_batches(rank: int, steps: int, delays_s: tuple[float, float] = (0.0, 0.0)) -> Iterable[np.ndarray]:
    """Batches that take between so long and so long to be made, no two equally long."""
    random = np.random.default_rng(rank)
    for _ in range(steps):
        time.sleep(random.uniform(*delays_s))
        yield np.ones((BATCH, WIDTH), np.float32)


def tensorflow_loop(log_dir: str, strategy: Any, batches: Callable[[], Iterable[np.ndarray]]) -> None:
    """A custom loop under a strategy of several workers."""
    import tensorflow as tf

    with strategy.scope():
        weights = tf.Variable(tf.ones((WIDTH, 1)))
    signature = tf.TensorSpec((BATCH, WIDTH), tf.float32)
    dataset = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(batches, output_signature=signature)
    )

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


def torch_loop(
    log_dir: str, wrap: Callable[[Any], Any], batches: Iterable[np.ndarray], compute: Callable[[], None] = lambda: None
) -> None:
    """A custom loop around what `wrap` makes of a model; `compute` is work of every step."""
    import torch

    model = wrap(torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for x in monitor.batches(batches):
            optimizer.zero_grad()
            compute()
            (model(torch.from_numpy(x)) ** 2).mean().backward()
            optimizer.step()


def jax_loop(
    log_dir: str, batches: Iterable[np.ndarray], exchange: Callable[[Any], Any] = lambda weights: None
) -> None:
    """A custom loop; `exchange` is what the processes do with each other in every step."""
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda w, x: w - 1e-3 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))
    weights = jnp.ones((WIDTH, 1))
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for x in monitor.batches(batches):
            weights = step(weights, x)
            exchange(weights)
