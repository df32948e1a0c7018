"""Patients' data are learned with differential privacy, for which each patient's gradient is cut to a length: the
training takes thirty times as long as without (tensorflow/privacy#86, gibipara92/learning-explanations-hard-to-vary#1).

Right: in the step: `clipped` goes through the 32 samples of a batch in a Python loop, with a compiled gradient of one
sample and dozens of small operations outside of `jit` for each: `jax.vmap` over the samples, with the clipping and the
sum in one compiled function; not the input, which is in memory, not a smaller network, and not compiling.
"""

import itertools

from gauntlet.blind import main
from gauntlet.helpers import jax, np, rows

BACKEND, CAUSE, USES = "jax", "each sample's gradient is computed and clipped in a Python loop", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    x, y = rows(3200, 30)
    sizes = (30, 64, 64, 1)
    weights = [
        (generator.normal(0, 0.2, pair).astype("float32"), np.zeros(pair[1], "float32"))
        for pair in itertools.pairwise(sizes)
    ]
    optimizer = optax.sgd(0.1)
    state = optimizer.init(weights)

    def loss_of(weights, x, y):
        for weight, bias in weights[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        return optax.sigmoid_binary_cross_entropy(x @ weights[-1][0] + weights[-1][1], y).mean()

    def cut(slopes):
        length = jnp.maximum(1.0, optax.global_norm(slopes))
        return jax.tree.map(lambda slope: slope / length, slopes)

    slopes_of = jax.jit(jax.grad(loss_of))

    def clipped(weights, x, y):
        total = jax.tree.map(jnp.zeros_like, weights)
        for sample, label in zip(x, y, strict=True):
            total = jax.tree.map(jnp.add, total, cut(slopes_of(weights, sample, label)))
        return total

    @jax.jit
    def clipped_at_once(weights, x, y):
        each = jax.vmap(lambda sample, label: cut(jax.grad(loss_of)(weights, sample, label)))(x, y)
        return jax.tree.map(lambda slope: slope.sum(0), each)

    @jax.jit
    def update(weights, state, slopes, key):
        slopes = jax.tree.map(lambda slope: (slope + jax.random.normal(key, slope.shape)) / 32, slopes)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state

    gradients = clipped_at_once if run.does("without") else clipped
    keys = jax.random.split(jax.random.key(0), 100)
    with run.monitor() as monitor:
        for number, chosen in enumerate(monitor.batches(generator.permutation(3200).reshape(-1, 32))):
            weights, state = update(weights, state, gradients(weights, x[chosen], y[chosen]), keys[number])
        weights[0][0].block_until_ready()


if __name__ == "__main__":
    main(train)
