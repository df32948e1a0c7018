"""A network gives 48 modes of a bridge's deck for a moment in time, and learns from measured speeds, i.e.
from the slopes of all modes in time; the card is at 99 % and an epoch takes ages.

Right: `jax.jacrev` goes backward once for each of the 48 outputs, for a function of one number: `jax.jvp` (or
`jax.jacfwd`) gets all slopes in one forward pass; nothing of the input, of syncs or of the host, not a larger batch.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = (
    "jax",
    "jacrev takes one backward pass for each of 48 outputs of a function of one number",
    "monitor",
)


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    moments = generator.uniform(0, 6, (40, 64)).astype("float32")
    speeds = np.cos(moments[..., None] * np.linspace(0.2, 3, 48)).astype("float32")
    sizes = [1, 96, 96, 48]
    weights = [
        (generator.normal(0, one**-0.5, (one, other)).astype("float32"), np.zeros(other, "float32"))
        for one, other in pairwise(sizes)
    ]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def modes(weights, moment):
        hidden = moment[None]
        for weight, bias in weights[:-1]:
            hidden = jnp.tanh(hidden @ weight + bias)
        return hidden @ weights[-1][0] + weights[-1][1]

    def slopes_of(weights, moment):
        if run.does("without"):
            return jax.jvp(lambda at: modes(weights, at), (moment,), (jnp.ones_like(moment),))[1]
        return jax.jacrev(modes, argnums=1)(weights, moment)

    @jax.jit
    def step(weights, state, moment, speed):
        def loss_of(weights):
            return ((jax.vmap(slopes_of, (None, 0))(weights, moment) - speed) ** 2).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    with run.monitor() as monitor:
        for _ in range(40):
            for moment, speed in monitor.batches(list(zip(moments, speeds, strict=True))):
                weights, state, loss = step(weights, state, moment, speed)
            print(f"{float(loss):.4f}")


if __name__ == "__main__":
    main(train)
