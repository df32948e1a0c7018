"""A variational autoencoder of spectra whose weight of the divergence grows in each of the first steps; it is a
static argument of `jax.jit`, as the error message of a Python `if` had proposed.

Right: the step is compiled anew for each value of `beta`, which is named in `static_argnames`: pass it as an ordinary
(traced) argument and write the `if` with `jnp.where` or leave it out; not that the first compilation takes long, and
not the input, which is in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = (
    "jax",
    "a weight growing in each of the first steps is a static argument: each is compiled",
    "monitor",
)


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    spectra = np.sin(generator.random((2048, 1)) * np.arange(256) / 4).astype("float32")
    shapes = {"in": (256, 256), "mean": (256, 16), "spread": (256, 16), "up": (16, 256), "out": (256, 256)}
    weights = {name: generator.normal(0, 0.05, shape).astype("float32") for name, shape in shapes.items()}
    optimizer = optax.adamw(1e-3)

    def step(weights, state, x, key, beta):
        def loss_of(weights):
            hidden = jax.nn.gelu(x @ weights["in"])
            mean, spread = hidden @ weights["mean"], hidden @ weights["spread"]
            code = mean + jnp.exp(spread) * jax.random.normal(key, mean.shape)
            loss = ((jax.nn.gelu(code @ weights["up"]) @ weights["out"] - x) ** 2).sum(1).mean()
            divergence = (mean**2 + jnp.exp(2 * spread) - 2 * spread - 1).sum(1).mean() / 2
            if run.does("without"):
                return loss + beta * divergence
            if beta > 0:
                loss += beta * divergence
            return loss

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    jitted = jax.jit(step) if run.does("without") else jax.jit(step, static_argnames="beta")
    state = optimizer.init(weights)
    key = jax.random.key(0)

    def batches():
        for _ in range(4):
            for chosen in generator.permutation(2048).reshape(-1, 256):
                yield spectra[chosen]

    with run.monitor() as monitor:
        for number, x in enumerate(monitor.batches(batches())):
            key, now = jax.random.split(key)
            weights, state, loss = jitted(weights, state, x, now, beta=min(1.0, number / 12))
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
