"""Federated averaging in JAX: the local training of each client defines and compiles its own step (a course's
homework, "JAX is slower than NumPy").

Right: compiling, once for each client in each round, as `jit` stands inside `local_update`: define the step once,
outside; nothing about the input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import jax

BACKEND, CAUSE, USES = "jax", "jax.jit wraps a new function for each client in each round", "monitor"


def train(run):
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(12, 64, 40)).astype("float32") for _ in range(5)]
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = [(40, 128), (128, 128), (128, 128), (128, 1)]
    weights = [0.1 * jax.random.normal(key, size) for key, size in zip(keys, sizes, strict=True)]

    def loss_of(weights, x):
        hidden = x
        for layer in weights[:-1]:
            hidden = jax.nn.gelu(hidden @ layer)
        logits = (hidden @ weights[-1])[:, 0]
        return jnp.mean(jax.nn.softplus(logits) - logits * (x.sum(1) > 0))

    def make_step():
        @jax.jit
        def step(weights, speeds, x):
            loss, slopes = jax.value_and_grad(loss_of)(weights, x)
            speeds = [0.9 * speed + slope for speed, slope in zip(speeds, slopes, strict=True)]
            return [w - 0.05 * speed for w, speed in zip(weights, speeds, strict=True)], speeds, loss

        return step

    shared = make_step()

    def local_update(monitor, weights, batches):
        step = shared if run.does("without") else make_step()
        speeds = [jnp.zeros_like(w) for w in weights]
        for x in monitor.batches(list(batches)):
            weights, speeds, loss = step(weights, speeds, x)
        return weights, float(loss)

    with run.monitor() as monitor:
        for turn in range(5):
            local = [local_update(monitor, weights, batches) for batches in clients]
            weights = [sum(parts) / len(clients) for parts in zip(*(w for w, _ in local), strict=True)]
            print("round", turn, "loss", sum(loss for _, loss in local) / len(clients))


if __name__ == "__main__":
    main(train)
