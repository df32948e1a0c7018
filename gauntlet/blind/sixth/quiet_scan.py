"""A recurrent forecaster in JAX, eight updates of which `lax.scan` does in one compiled call; the mean loss is printed
after each call, and now and then that on held-out series. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: it is compiled once, a call is long because it is many
updates, and drawing the batches costs little.
"""

import io

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "the loss is printed after each call, and a loss on 256 held-out series after each tenth"


def train(run):
    import optax

    jnp = jax.numpy
    rng = np.random.default_rng(0)
    record = np.sin(np.arange(20000) / 9) + rng.normal(0, 0.1, 20000)
    series = np.lib.stride_tricks.sliding_window_view(record.astype("float32"), 49)[::2]
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"inside": (1, 96), "hidden": (96, 96), "gate": (97, 96), "out": (96, 1)}
    weights = {
        name: jax.random.normal(key, shape) * 0.1 for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = optimizer.init(weights)

    def loss_of(weights, some):
        def cell(hidden, value):
            gate = jax.nn.sigmoid(jnp.concatenate([hidden, value], 1) @ weights["gate"])
            new = jnp.tanh(value @ weights["inside"] + hidden @ weights["hidden"])
            hidden = gate * hidden + (1 - gate) * new
            return hidden, (hidden @ weights["out"])[:, 0]

        values = some.T[:, :, None]
        _, guesses = jax.lax.scan(cell, jnp.zeros((some.shape[0], 96)), values[:-1])
        return ((guesses - some.T[1:]) ** 2).mean()

    @jax.jit
    def updates(weights, state, batches):
        def update(carried, some):
            loss, gradients = jax.value_and_grad(loss_of)(carried[0], some)
            changes, state = optimizer.update(gradients, carried[1])
            return (optax.apply_updates(carried[0], changes), state), loss

        (weights, state), losses = jax.lax.scan(update, (weights, state), batches)
        return weights, state, losses.mean()

    held_loss = jax.jit(loss_of)
    drawn = (series[:9000][rng.integers(0, 9000, (8, 64))] for _ in range(160))
    printed = io.StringIO()
    with run.monitor() as monitor:
        for number, batches in enumerate(monitor.batches(drawn)):
            weights, state, loss = updates(weights, state, batches)
            if not run.does("without"):
                print(number, float(loss), file=printed)
                if number % 10 == 9:
                    print("held out", float(held_loss(weights, series[9000:9256])), file=printed)
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
