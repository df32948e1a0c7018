"""Eight networks on the strength of concrete are trained at once, by `vmap` in one compiled step; the losses of all
eight are printed after each step, a step late, and the first step takes seconds. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the compilation comes once, the losses are those of the
step before, which has ended, and the steps compute; not that the loss is read in each step, not recompilation, not the
input (rows of an array in memory), and not larger batches.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "the losses of eight networks are printed after each step, a step late"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    mixes = generator.normal(size=(512 * 40, 24)).astype("float32")
    strengths = np.sin(mixes.sum(1, keepdims=True)).astype("float32")
    weights = [
        (generator.normal(0, one**-0.5, (8, one, other)).astype("float32"), np.zeros((8, other), "float32"))
        for one, other in pairwise([24, 256, 256, 256, 1])
    ]
    optimizer = optax.adamw(1e-3)
    state = jax.vmap(optimizer.init)(weights)

    def loss_of(weights, mix, strength):
        hidden = mix
        for weight, bias in weights[:-1]:
            hidden = jax.nn.silu(hidden @ weight + bias)
        return ((hidden @ weights[-1][0] + weights[-1][1] - strength) ** 2).mean()

    def update(weights, state, mix, strength):
        loss, slopes = jax.value_and_grad(loss_of)(weights, mix, strength)
        changes, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, changes), state, loss

    step = jax.jit(jax.vmap(update, (0, 0, None, None)))
    before = None
    with run.monitor() as monitor:
        for _ in range(2):
            order = generator.permutation(len(mixes)).reshape(-1, 512)
            for rows in monitor.batches(order):
                weights, state, losses = step(weights, state, jnp.asarray(mixes[rows]), jnp.asarray(strengths[rows]))
                if before is not None and not run.does("without"):
                    print(" ".join(f"{loss:.3f}" for loss in np.asarray(before)))
                before = losses


if __name__ == "__main__":
    main(train)
