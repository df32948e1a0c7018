"""A small language model of letters in plain JAX; every 100 steps it writes a line, letter by letter, from a text that
grows, and the first such line takes longer than all steps before it.

Right: the compiled `predict` gets a text that is one letter longer at each call and is compiled anew for each length:
pad the text to a fixed length (and look at the place of the last letter), or one of a few lengths, or a loop within
`jit`; fewer or shorter lines are half an answer; not the step, which is compiled once, and not the input.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "a text that grows by a letter is compiled anew for each length", "monitor"
LENGTH = 64


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    text = generator.integers(0, 40, (300 * 16, LENGTH + 1)).astype("int32")
    shapes = {"letters": (40, 64), "places": (LENGTH, 64), "head": (64, 40)}
    for layer in range(2):
        shapes |= {
            f"qkv{layer}": (64, 192),
            f"out{layer}": (64, 64),
            f"wide{layer}": (64, 128),
            f"back{layer}": (128, 64),
        }
    weights = {name: generator.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    def scores(weights, letters):
        """Return the scores of the next letters; letters has the shape (text, place)."""
        length = letters.shape[1]
        hidden = weights["letters"][letters] + weights["places"][:length]
        later = jnp.triu(jnp.full((length, length), -1e9), 1)
        for layer in range(2):
            query, key, value = jnp.split(hidden @ weights[f"qkv{layer}"], 3, -1)
            seen = jax.nn.softmax(query @ key.swapaxes(1, 2) / 8 + later)
            hidden += (seen @ value) @ weights[f"out{layer}"]
            hidden += jax.nn.gelu(hidden @ weights[f"wide{layer}"]) @ weights[f"back{layer}"]
        return hidden @ weights["head"]

    @jax.jit
    def step(weights, state, letters):
        def loss_of(weights):
            guess = scores(weights, letters[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(guess, letters[:, 1:]).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    predict = jax.jit(scores)

    def line(weights, start):
        """Return a text of 40 further letters."""
        letters = list(start)
        for _ in range(40):
            if run.does("without"):
                padded = np.array([letters + [0] * (LENGTH - len(letters))], "int32")
                last = np.asarray(predict(weights, padded))[0, len(letters) - 1]
            else:
                last = np.asarray(predict(weights, np.array([letters], "int32")))[0, -1]
            letters.append(int(last.argmax()))
        return "".join(chr(97 + letter % 26) for letter in letters)

    bounds = list(pairwise(range(0, len(text) + 1, 16)))
    with run.monitor() as monitor:
        for number, (first, last) in enumerate(monitor.batches(bounds)):
            weights, state, loss = step(weights, state, text[first:last])
            if number % 100 == 99:
                print(number, f"{float(loss):.3f}", line(weights, [1, 2, 3]))


if __name__ == "__main__":
    main(train)
