"""Word vectors by hand, the continuous bag of words, after a blog post in NumPy, now in JAX: each word becomes a row of
the identity matrix, which is multiplied by the matrix of vectors.

Right: the context is one-hot encoded, 64 x 8 rows of 4,000 numbers of which one is not zero: `np.eye(...)[words]`
copies 8 MB on the host for each batch, which are handed over and multiplied: index the vectors by the words' numbers
(`vectors[words]`); a thread for the input is half an answer; not the batch size, and not the softmax first of all.
"""

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "words are one-hot encoded on the host and multiplied by the vectors", "monitor"
WORDS, BATCH = 4000, 64


def train(run):
    import optax

    jnp = jax.numpy
    generator = np.random.default_rng(0)
    text = generator.zipf(1.3, BATCH * 120 + 8) % WORDS
    around = [-4, -3, -2, -1, 1, 2, 3, 4]
    weights = {
        "vectors": generator.normal(0, 0.1, (WORDS, 48)).astype("float32"),
        "words": generator.normal(0, 0.1, (48, WORDS)).astype("float32"),
    }
    optimizer = optax.sgd(0.5)
    state = optimizer.init(weights)
    numbered = run.does("without")
    one_hot = np.eye(WORDS, dtype="float32")

    def batches():
        """Yield the contexts and their words."""
        middles = 4 + generator.permutation(len(text) - 8)
        for first in range(0, len(middles) - BATCH + 1, BATCH):
            middle = middles[first : first + BATCH]
            context = text[middle[:, None] + around]
            yield (context if numbered else one_hot[context]), text[middle]

    @jax.jit
    def step(weights, state, context, word):
        def loss_of(weights):
            vectors = weights["vectors"][context] if numbered else context @ weights["vectors"]
            scores = vectors.mean(1) @ weights["words"]
            return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(word)), word])

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    with run.monitor() as monitor:
        for epoch in range(10):
            for context, word in monitor.batches(batches()):
                weights, state, loss = step(weights, state, context, word)
            print(f"epoch {epoch}: {float(loss):.3f}")


if __name__ == "__main__":
    main(train)
