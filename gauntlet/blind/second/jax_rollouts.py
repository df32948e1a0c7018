"""Reinforcement learning in JAX whose environment is stepped in Python to fill each batch (forum: "GPU 3 % with my
own env").

Right: the input, which plays the environment in Python, holds training up, at `play`: several environments at once
or in other processes, or the environment in JAX.
"""

import math

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import jax

BACKEND, CAUSE, USES = "jax", "a Python environment is stepped one action at a time for each batch", "monitor"


def play(rng, steps):
    angle, speed, seen = rng.random(), 0.0, []
    for _ in range(steps):
        push = 1.0 if rng.random() < 0.5 + 0.1 * angle else -1.0
        speed += 0.05 * (push + math.sin(angle))
        angle = math.remainder(angle + 0.05 * speed, 2 * math.pi)
        seen.append((math.cos(angle), math.sin(angle), speed, push))
    return np.array(seen, "float32")


def train(run):
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    stored = [play(rng, 4096) for _ in range(8)]

    def batches():
        for number in range(200):
            yield stored[number % 8] if run.does("without") else play(rng, 4096)

    keys = jax.random.split(jax.random.key(0), 2)
    weights = [0.1 * jax.random.normal(keys[0], (3, 128)), 0.1 * jax.random.normal(keys[1], (128, 1))]

    @jax.jit
    def step(weights, batch):
        def loss_of(weights):
            value = jnp.tanh(batch[:, :3] @ weights[0]) @ weights[1]
            return jnp.mean((value[:, 0] - batch[:, 3]) ** 2)

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        return [w - 0.05 * slope for w, slope in zip(weights, slopes, strict=True)], loss

    with run.monitor() as monitor:
        for batch in monitor.batches(batches()):
            weights, loss = step(weights, batch)
    loss.block_until_ready()


if __name__ == "__main__":
    main(train)
