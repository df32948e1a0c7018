"""A transformer on notes of melodies in JAX; each step ends with `block_until_ready`, so that the tokens a second can
be printed, and the keys for dropout are split on the host before each. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the step computes for most of its time, to wait for it
costs nothing as nothing else could be done meanwhile, and it is compiled once; not `block_until_ready`, not the keys,
not the printing, and not the input (rows of an array in memory).
"""

import time

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "each step is waited for, to print its tokens a second, and splits a key for dropout"
LENGTH, WIDTH = 64, 96


def weights_of(generator):
    """Return the weights of two layers."""
    shapes = {"notes": (128, WIDTH), "places": (LENGTH, WIDTH), "head": (WIDTH, 128)}
    for layer in range(2):
        shapes |= {f"qkv{layer}": (WIDTH, 3 * WIDTH), f"out{layer}": (WIDTH, WIDTH)}
        shapes |= {f"wide{layer}": (WIDTH, 4 * WIDTH), f"back{layer}": (4 * WIDTH, WIDTH)}
    return {name: generator.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}


def scores(weights, notes, key):
    """Return the scores of the next notes; notes has the shape (melody, place)."""
    jnp = jax.numpy
    hidden = weights["notes"][notes] + weights["places"]
    later = jnp.triu(jnp.full((LENGTH, LENGTH), -1e9), 1)
    for layer in range(2):
        query, key_, value = jnp.split(hidden @ weights[f"qkv{layer}"], 3, -1)
        seen = jax.nn.softmax(query @ key_.swapaxes(1, 2) / WIDTH**0.5 + later)
        hidden += (seen @ value) @ weights[f"out{layer}"]
        kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 0.9, hidden.shape)
        hidden += kept * (jax.nn.gelu(hidden @ weights[f"wide{layer}"]) @ weights[f"back{layer}"])
    return hidden @ weights["head"]


def train(run):
    import optax

    generator = np.random.default_rng(0)
    melodies = generator.integers(0, 128, (32 * 80, LENGTH + 1)).astype("int32")
    weights = weights_of(generator)
    optimizer = optax.adamw(3e-4)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, notes, key):
        def loss_of(weights):
            guess = scores(weights, notes[:, :-1], key)
            return optax.softmax_cross_entropy_with_integer_labels(guess, notes[:, 1:]).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, changes), state, loss

    key, waits = jax.random.key(0), not run.does("without")
    with run.monitor() as monitor:
        for epoch in range(2):
            order = generator.permutation(len(melodies)).reshape(-1, 32)
            for number, rows in enumerate(monitor.batches(order)):
                began = time.perf_counter()
                key, used = jax.random.split(key)
                weights, state, loss = step(weights, state, melodies[rows], used)
                if waits:
                    loss.block_until_ready()
                    if number % 10 == 0:
                        speed = 32 * LENGTH / (time.perf_counter() - began)
                        print(f"{epoch} {number}: {float(loss):.3f}, {speed:,.0f} tokens/s")


if __name__ == "__main__":
    main(train)
