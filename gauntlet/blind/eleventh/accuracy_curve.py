"""Digits from scratch in plain JAX, after the tutorial; for a smooth curve the accuracy on all training and test digits
is computed after each step, where the tutorial has it after each epoch.

Right: `accuracy` runs the network over 7,000 digits after each step of 64: after each epoch, or every hundredth step,
or of the batch that was just trained; not the input (rows of an array in memory), not the step, which is compiled, and
not that the accuracy is read by the host.
"""

from itertools import pairwise

from gauntlet.blind import main
from gauntlet.helpers import jax, np

BACKEND, CAUSE, USES = "jax", "the accuracy on all 7,000 digits is computed after each step", "monitor"


def train(run):
    jnp = jax.numpy
    generator = np.random.default_rng(0)
    digits, kinds = generator.random((7000, 784), "float32"), generator.integers(0, 10, 7000)
    training, test = (digits[:6000], kinds[:6000]), (digits[6000:], kinds[6000:])
    weights = [
        (generator.normal(0, one**-0.5, (one, other)).astype("float32"), np.zeros(other, "float32"))
        for one, other in pairwise([784, 256, 256, 10])
    ]

    def scores(weights, digit):
        hidden = digit
        for weight, bias in weights[:-1]:
            hidden = jax.nn.relu(hidden @ weight + bias)
        return jax.nn.log_softmax(hidden @ weights[-1][0] + weights[-1][1])

    @jax.jit
    def accuracy(weights, digit, kind):
        return jnp.mean(jnp.argmax(scores(weights, digit), 1) == kind)

    @jax.jit
    def update(weights, digit, kind):
        def loss_of(weights):
            return -jnp.mean(jnp.take_along_axis(scores(weights, digit), kind[:, None], 1))

        slopes = jax.grad(loss_of)(weights)
        return jax.tree.map(lambda weight, slope: weight - 0.05 * slope, weights, slopes)

    curve = []
    with run.monitor() as monitor:
        for epoch in range(4):
            order = generator.permutation(6000)[: 64 * 93].reshape(-1, 64)
            for number, rows in enumerate(monitor.batches(order), 1):
                weights = update(weights, digits[rows], kinds[rows])
                if number == len(order) or not run.does("without"):
                    curve.append((float(accuracy(weights, *training)), float(accuracy(weights, *test))))
            print(f"epoch {epoch}: {curve[-1][0]:.3f} {curve[-1][1]:.3f}")


if __name__ == "__main__":
    main(train)
