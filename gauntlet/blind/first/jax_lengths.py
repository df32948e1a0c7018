"""A JAX loop over sentences of many lengths: each new length compiles the step again (jax-ml/jax forum questions).

Right: compiling for each new shape of a batch: pad to one length, or to a few.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import jax

BACKEND, CAUSE, USES = "jax", "every batch has a length of its own; the step is compiled for each", "monitor"


def train(run):
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 24, 200)
    batches = [rng.integers(0, 200, (16, 24 if run.does("without") else n)).astype("int32") for n in lengths]
    keys = jax.random.split(jax.random.key(0), 3)
    weights = {
        "embed": 0.1 * jax.random.normal(keys[0], (200, 32)),
        "cell": 0.1 * jax.random.normal(keys[1], (64, 32)),
        "out": 0.1 * jax.random.normal(keys[2], (32, 1)),
    }
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def loss_of(weights, tokens):
        def cell(hidden, x):
            return jnp.tanh(jnp.concatenate([hidden, x], 1) @ weights["cell"]), None

        embedded = weights["embed"][tokens].swapaxes(0, 1)
        last, _ = jax.lax.scan(cell, jnp.zeros((16, 32)), embedded)
        return jnp.mean((last @ weights["out"] - 1) ** 2)

    @jax.jit
    def step(weights, state, tokens):
        loss, slopes = jax.value_and_grad(loss_of)(weights, tokens)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state, loss

    with run.monitor() as monitor:
        for tokens in monitor.batches(batches):
            weights, state, loss = step(weights, state, tokens)
    loss.block_until_ready()


if __name__ == "__main__":
    main(train)
