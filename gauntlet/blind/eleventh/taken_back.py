"""Currents of a battery with a deep network in JAX; the loss was once not a number, so that a step is taken back where
it is: `copy.deepcopy` keeps the weights and the optimizer's state ahead of each, as a habit from another framework.

Right: `copy.deepcopy` of all weights and of Adam's state in each step: arrays of JAX cannot change, so that keeping a
reference (`before = weights, state`) does, or copy once in a while; not the step, which is compiled once, not the
input (rows of an array in memory), and not that the loss is read first of all.
"""

import copy
from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "deepcopy of the weights and the optimizer's state ahead of each step", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    cycles = generator.normal(size=(64 * 100, 24)).astype("float32")
    currents = np.tanh(cycles[:, :4].sum(1)).astype("float32")
    weights = [
        (generator.normal(0, one**-0.5, (one, other)).astype("float32"), np.zeros(other, "float32"))
        for one, other in pairwise([24, *[64] * 20, 1])
    ]
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, cycle, current):
        def loss_of(weights):
            hidden = cycle
            for number, (weight, bias) in enumerate(weights[:-1]):
                changed = jnp.tanh(hidden @ weight + bias)
                hidden = hidden + changed if number else changed
            return (((hidden @ weights[-1][0] + weights[-1][1])[:, 0] - current) ** 2).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    restored = 0
    with run.monitor() as monitor:
        for epoch in range(14):
            order = generator.permutation(len(cycles)).reshape(-1, 64)
            for rows in monitor.batches(order):
                before = (weights, state) if run.does("without") else copy.deepcopy((weights, state))
                weights, state, loss = step(weights, state, cycles[rows], currents[rows])
                if not np.isfinite(float(loss)):
                    (weights, state), restored = before, restored + 1
            print(f"epoch {epoch}: {float(loss):.4f}, {restored} steps taken back")


if __name__ == "__main__":
    main(train)
