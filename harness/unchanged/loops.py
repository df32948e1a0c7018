"""Seeded training loops without `fit`, each a cell of the matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

BATCH, WIDTH, ROWS, EPOCHS = 8, 4, 50, 3


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.rand(ROWS, WIDTH).astype("float32")
    return x, x.sum(1, keepdims=True)


def tensorflow(monitored: Callable[[Any], Iterable], way: str) -> dict[str, Any]:
    import tensorflow as tf

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(32).batch(BATCH)
    dataset = dataset.filter(lambda x, y: True)
    weights = tf.Variable(tf.random.normal([WIDTH, 1]))
    optimizer = tf.keras.optimizers.Adam(0.05)

    def step(x, y):
        with tf.GradientTape() as tape:
            noisy = tf.nn.dropout(x, 0.2)
            loss = tf.reduce_mean((noisy @ weights - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    if way != "eager":
        step = tf.function(step)
    if way == "the epoch in a tf.function":

        @tf.function
        def epoch():
            total = tf.constant(0.0)
            for x, y in dataset:
                total += step(x, y)
            return total

        losses = [float(run()) for _ in range(EPOCHS) for run in monitored([epoch])]
    else:
        losses = [float(step(x, y)) for _ in range(EPOCHS) for x, y in monitored(dataset)]
    return {
        "losses": losses,
        "weights": weights.numpy().tolist(),
        "optimizer": [v.numpy().tolist() for v in optimizer.variables],
        "random": tf.random.uniform([3]).numpy().tolist() + list(np.random.rand(3)),
    }


def torch(monitored: Callable[[Any], Iterable], way: str) -> dict[str, Any]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    np.random.seed(3)
    torch.manual_seed(3)
    rows = TensorDataset(*map(torch.from_numpy, arrays()))
    loader = DataLoader(rows, BATCH, shuffle=True, num_workers=2 if way == "workers" else 0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(EPOCHS):
        for x, y in monitored(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {
        "losses": losses,
        "weights": [p.tolist() for p in model.parameters()],
        "optimizer": str(optimizer.state_dict()),
        "random": torch.rand(3).tolist() + list(np.random.rand(3)),
    }


def jax(monitored: Callable[[Any], Iterable], way: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    np.random.seed(3)
    key = jax.random.key(3)
    weights = jnp.zeros((WIDTH, 1))

    def step(weights, key, x, y):
        kept = jax.random.bernoulli(key, 0.8, x.shape) * x
        loss, slope = jax.value_and_grad(lambda w: jnp.mean((kept @ w - y) ** 2))(weights)
        return weights - 0.1 * slope, loss

    if way == "jit":
        step = jax.jit(step)
    x, y = arrays()
    losses = []
    for _ in range(EPOCHS):
        order = np.random.permutation(ROWS)
        batches = ((x[order[i : i + BATCH]], y[order[i : i + BATCH]]) for i in range(0, ROWS, BATCH))
        for batch in monitored(batches):
            key, used = jax.random.split(key)
            weights, loss = step(weights, used, *batch)
            losses.append(float(loss))
    return {
        "losses": losses,
        "weights": weights.tolist(),
        "random": jax.random.key_data(key).tolist() + list(np.random.rand(3)),
    }


LOOPS = {
    ("tensorflow", "eager"): tensorflow,
    ("tensorflow", "tf.function"): tensorflow,
    ("tensorflow", "the epoch in a tf.function"): tensorflow,
    ("torch", "eager"): torch,
    ("torch", "workers"): torch,
    ("jax", "eager"): jax,
    ("jax", "jit"): jax,
}


def run(framework: str, way: str, log_dir: str | None, windows: Any) -> dict[str, Any]:
    """What a seeded loop leaves behind; recorded by us where there is a `log_dir`."""
    loop = LOOPS[framework, way]
    if log_dir is None:
        return loop(lambda batches: batches, way)
    from gpu_util_callback import GpuUtilMonitor

    with contextlib.ExitStack() as stack:
        monitor = GpuUtilMonitor(log_dir, framework=framework, report=False, trace=windows)
        stack.enter_context(monitor)
        return loop(monitor.batches, way)
