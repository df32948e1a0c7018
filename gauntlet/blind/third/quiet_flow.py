"""A JAX loop with one compiled step over batches in memory; the loss is read every fifty steps. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import jax

BACKEND, CAUSE, USES = "jax", "", "monitor"


def train(run):
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(256, 128)).astype("float32") for _ in range(100)]
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = [(129, 512), (512, 512), (512, 512), (512, 128)]
    weights = [jax.random.normal(key, size) / size[0] ** 0.5 for key, size in zip(keys, sizes, strict=True)]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def loss_of(weights, x, key):
        first, second = jax.random.split(key)
        noise, time = jax.random.normal(first, x.shape), jax.random.uniform(second, (len(x), 1))
        hidden = jnp.concatenate([(1 - time) * noise + time * x, time], 1)
        for layer in weights[:-1]:
            hidden = jax.nn.gelu(hidden @ layer)
        return jnp.mean((hidden @ weights[-1] - (x - noise)) ** 2)

    @jax.jit
    def step(weights, state, x, key):
        loss, slopes = jax.value_and_grad(loss_of)(weights, x, key)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state, loss

    key, count = jax.random.key(1), 0
    with run.monitor() as monitor:
        for _ in range(12):
            for x in monitor.batches(batches):
                key, now = jax.random.split(key)
                weights, state, loss = step(weights, state, x, now)
                count += 1
                if count % 50 == 0:
                    print(count, float(loss))


if __name__ == "__main__":
    main(train)
