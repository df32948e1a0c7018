"""Q-learning with prioritized replay as short tutorials have it: the priorities are in a deque, of which an array is
made for each draw, raised to a power and divided by its sum.

Right: in the loop, around the compiled step: `draw` makes an array of 60,000 Python numbers for each batch (and
`np.random.choice` adds them up): keep the priorities in an array, or in a tree of sums; not the environment, not
JAX's step and not its compilation.
"""

import itertools
from collections import deque

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "an array is made of a deque of 60,000 priorities for each replayed batch", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    count = 60_000
    states = generator.normal(size=(count, 24)).astype("float32")
    actions, rewards = generator.integers(0, 4, count), generator.normal(size=count).astype("float32")
    following = (states + generator.normal(0, 0.1, states.shape)).astype("float32")
    priorities = deque(generator.random(count).tolist(), maxlen=count)
    powers = np.array(priorities) ** 0.6

    def draw():
        if run.does("without"):
            sums = powers.cumsum()
            chosen = np.minimum(sums.searchsorted(generator.random(64) * sums[-1]), count - 1)
            chances = powers[chosen] / sums[-1]
        else:
            chances = np.array(priorities) ** 0.6
            chances /= chances.sum()
            chosen = generator.choice(count, 64, p=chances)
            chances = chances[chosen]
        weights = (count * chances) ** -0.4
        return chosen, (weights / weights.max()).astype("float32")

    def remember(chosen, errors):
        if run.does("without"):
            powers[chosen] = (errors + 1e-3) ** 0.6
        else:
            for i, error in zip(chosen, errors.tolist(), strict=True):
                priorities[i] = error + 1e-3

    sizes = (24, 256, 256, 4)
    weights = [generator.normal(0, 0.1, pair).astype("float32") for pair in itertools.pairwise(sizes)]
    optimizer = optax.adam(1e-3)

    def values(weights, states):
        for one in weights[:-1]:
            states = jax.nn.relu(states @ one)
        return states @ weights[-1]

    @jax.jit
    def learn(weights, memory, batch, importance):
        before, action, reward, after = batch

        def loss_of(weights):
            expected = values(weights, before)[jnp.arange(64), action]
            errors = reward + 0.99 * jax.lax.stop_gradient(values(weights, after).max(1)) - expected
            return (importance * errors**2).mean(), jnp.abs(errors)

        slopes, errors = jax.grad(loss_of, has_aux=True)(weights)
        updates, memory = optimizer.update(slopes, memory)
        return optax.apply_updates(weights, updates), memory, errors

    memory = optimizer.init(weights)
    with run.monitor() as monitor:
        for _ in monitor.batches(range(2400)):
            chosen, importance = draw()
            batch = states[chosen], actions[chosen], rewards[chosen], following[chosen]
            weights, memory, errors = learn(weights, memory, batch, importance)
            remember(chosen, np.asarray(errors))


if __name__ == "__main__":
    main(train)
