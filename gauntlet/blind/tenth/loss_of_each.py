"""Ratings of wines by plain JAX; the loss of each sample is kept in a dictionary, to see afterwards which ones are
hard, and the card is at 20 %.

Right: after each step a Python loop takes the 256 losses one at a time off a jax array, `float(losses[i])`, each a
small program and a wait: convert the whole array once (`np.asarray(losses)`, or `.tolist()`), and later than the step,
or keep them on the device; not the compiled step, not the input, which is in memory, and not the size of the batch.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "float(losses[i]) reads each sample's loss on its own", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    wines, points = generator.normal(size=(256 * 24, 40)).astype("float32"), generator.normal(size=256 * 24)
    points = points.astype("float32")
    weights = [
        (generator.normal(0, one**-0.5, (one, other)).astype("float32"), np.zeros(other, "float32"))
        for one, other in pairwise([40, 192, 192, 1])
    ]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def losses_of(weights, wine, point):
        hidden = wine
        for weight, bias in weights[:-1]:
            hidden = jnp.tanh(hidden @ weight + bias)
        return ((hidden @ weights[-1][0] + weights[-1][1])[:, 0] - point) ** 2

    @jax.jit
    def step(weights, state, wine, point):
        def mean_of(weights):
            losses = losses_of(weights, wine, point)
            return losses.mean(), losses

        slopes, losses = jax.grad(mean_of, has_aux=True)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, losses

    history = {number: [] for number in range(len(wines))}
    with run.monitor() as monitor:
        for epoch in range(28):
            order = generator.permutation(len(wines)).reshape(-1, 256)
            for rows in monitor.batches(order):
                weights, state, losses = step(weights, state, wines[rows], points[rows])
                if run.does("without"):
                    losses = np.asarray(losses)
                for place, row in enumerate(rows):
                    history[row].append(float(losses[place]))
            print(epoch, f"{np.mean([kept[-1] for kept in history.values()]):.3f}")


if __name__ == "__main__":
    main(train)
