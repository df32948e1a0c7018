"""A DQN agent in JAX keeps its memory as an array on the device; `memory.at[i].set(...)` after each step of the cart is
what the tutorial does inside of `jit`, and outside of it (jax-ml/jax#9132, #15684).

Right: each of four `memory.at[i].set(...)` outside of `jit` copies a whole buffer of tens of megabytes to store one
row: keep the memory in NumPy arrays that are written in place, or write it in a jitted function that gets the buffers
by `donate_argnums`; not the update of the network, not the drawing of the 64 rows, and not the simulation of the cart.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "memory.at[i].set(...) outside of jit copies the whole replay memory", "monitor"


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    kind = np if run.does("without") else jnp
    size = 60_000
    memory = {
        "seen": kind.zeros((size, 80), "float32"),
        "next": kind.zeros((size, 80), "float32"),
        "action": kind.zeros(size, "int32"),
        "reward": kind.zeros(size, "float32"),
    }

    def remember(at, **values):
        for name, value in values.items():
            if run.does("without"):
                memory[name][at] = value
            else:
                memory[name] = memory[name].at[at].set(value)

    sizes = [80, 256, 256, 4]
    weights = [
        (generator.normal(0, one**-0.5, (one, other)).astype("float32"), np.zeros(other, "float32"))
        for one, other in pairwise(sizes)
    ]
    optimizer = optax.adam(1e-4)
    state = optimizer.init(weights)

    def values(weights, seen):
        for weight, bias in weights[:-1]:
            seen = jax.nn.relu(seen @ weight + bias)
        return seen @ weights[-1][0] + weights[-1][1]

    @jax.jit
    def update(weights, state, batch):
        def loss_of(weights):
            wanted = batch["reward"] + 0.99 * values(weights, batch["next"]).max(1)
            chosen = jnp.take_along_axis(values(weights, batch["seen"]), batch["action"][:, None], 1)[:, 0]
            return optax.huber_loss(chosen, jax.lax.stop_gradient(wanted)).mean()

        slopes = jax.grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state

    choose = jax.jit(lambda weights, seen: values(weights, seen).argmax())
    seen = generator.normal(size=80).astype("float32")
    with run.monitor() as monitor:
        for number in monitor.batches(range(400)):
            action = int(choose(weights, seen))
            after = (0.9 * seen + 0.1 * generator.normal(size=80) + 0.01 * action).astype("float32")
            remember(number, seen=seen, next=after, action=action, reward=float(after[0]))
            seen = after
            rows = generator.integers(0, number + 1, 64)
            batch = {name: values[rows] for name, values in memory.items()}
            weights, state = update(weights, state, batch)
        jax.block_until_ready(weights)


if __name__ == "__main__":
    main(train)
