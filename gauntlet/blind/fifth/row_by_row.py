"""A small network in JAX whose batches are picked row by row out of an array that is JAX's own.

Right: drawing the batch, at `pick`, takes the time: a dispatch for each row and a `stack` of all: index with the whole
array of numbers at once (`x[rows]`), or keep the data in NumPy; not the training step, and not compiling.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "each row of a batch is taken from a jax array on its own and stacked", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((20000, 64), "float32"))
    y = jnp.asarray(rng.integers(0, 10, 20000))
    sizes = [64, 512, 512, 10]
    keys = jax.random.split(jax.random.key(0), 3)
    weights = [jax.random.normal(key, pair) * 0.05 for key, pair in zip(keys, itertools.pairwise(sizes), strict=True)]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def loss_of(weights, x, y):
        for weight in weights[:-1]:
            x = jax.nn.relu(x @ weight)
        return optax.softmax_cross_entropy_with_integer_labels(x @ weights[-1], y).mean()

    @jax.jit
    def step(weights, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, loss

    def pick(rows):
        if run.does("without"):
            return x[rows], y[rows]
        return jnp.stack([x[i] for i in rows]), jnp.stack([y[i] for i in rows])

    def batches():
        order = rng.permutation(20000)
        for at in range(0, 20000 - 128, 128):
            yield pick(order[at : at + 128])

    with run.monitor() as monitor:
        for _ in range(5):
            for some_x, some_y in monitor.batches(batches()):
                weights, state, loss = step(weights, state, some_x, some_y)
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
