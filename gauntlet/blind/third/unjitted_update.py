"""A JAX loop that compiles the gradients alone; optax's update runs outside of `jit` (google-deepmind/optax#319).

Right: the optimizer's update runs operation by operation in each step: move `update` and `apply_updates` into the
compiled step; nothing about the input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import jax

BACKEND, CAUSE, USES = "jax", "the optimizer's update runs outside of jit, operation by operation", "monitor"


def train(run):
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(0)
    x = rng.normal(size=(350, 64, 48)).astype("float32")
    y = x.sum(2, keepdims=True)
    keys = jax.random.split(jax.random.key(0), 12)
    weights = [{"w": 0.2 * jax.random.normal(key, (48, 48)), "b": jnp.zeros(48)} for key in keys]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = optimizer.init(weights)

    def loss_of(weights, x, y):
        for layer in weights:
            x = x + jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x.sum(1, keepdims=True) - y) ** 2)

    slopes_of = jax.jit(jax.value_and_grad(loss_of))

    def apply(weights, state, slopes):
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state

    if run.does("without"):
        apply = jax.jit(apply)
    with run.monitor() as monitor:
        for _ in range(2):
            for features, target in monitor.batches(list(zip(x, y, strict=True))):
                loss, slopes = slopes_of(weights, features, target)
                weights, state = apply(weights, state, slopes)
    loss.block_until_ready()


if __name__ == "__main__":
    main(train)
