"""A network in JAX whose author wants to see each layer's gradients and weights in a table, for each step, since
training once diverged.

Right: between the steps the program reads statistics of 26 arrays and their gradients, each a few operations of its own
outside of the compiled step, at `statistics` (the `float` of each waits): every n-th step, or compute them in the
compiled step and read them at once; nothing about the input, and the step itself is compiled.
"""

import csv

from gauntlet.blind import main
from gauntlet.helpers import folder, jax, np, rows

BACKEND, CAUSE, USES = "jax", "norms and spreads of all layers are computed outside of jit after each step", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    x, y = rows(19200, 96)
    keys = jax.random.split(jax.random.key(0), 13)
    sizes = [96] + [128] * 12 + [1]
    weights = {
        f"layer{i}": {"w": jax.random.normal(key, sizes[i : i + 2]) * 0.1, "b": jnp.zeros(sizes[i + 1])}
        for i, key in enumerate(keys)
    }
    optimizer = optax.adamw(1e-3)
    state = optimizer.init(weights)

    def loss_of(weights, x, y):
        for i in range(12):
            hidden = jax.nn.relu(x @ weights[f"layer{i}"]["w"] + weights[f"layer{i}"]["b"])
            x = hidden + x if i else hidden
        return optax.sigmoid_binary_cross_entropy(x @ weights["layer12"]["w"] + weights["layer12"]["b"], y).mean()

    @jax.jit
    def step(weights, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss, gradients

    def statistics(tree):
        for array in jax.tree.leaves(tree):
            yield from (float(jnp.linalg.norm(array)), float(jnp.abs(array).max()), float(array.std()))

    def batches():
        order = np.random.default_rng(0).permutation(19200)
        for at in range(0, 19200, 128):
            yield x[order[at : at + 128]], y[order[at : at + 128]]

    with run.monitor() as monitor, (folder() / "layers.csv").open("w", newline="") as file:
        table = csv.writer(file)
        for _ in range(6):
            for number, (some_x, some_y) in enumerate(monitor.batches(batches())):
                weights, state, loss, gradients = step(weights, state, some_x, some_y)
                if number % 50 == 0 or not run.does("without"):
                    table.writerow([float(loss), *statistics(gradients), *statistics(weights)])


if __name__ == "__main__":
    main(train)
