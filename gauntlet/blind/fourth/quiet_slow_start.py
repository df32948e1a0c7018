"""A Flax network on digits, whose file is unpacked before the first batch, once; the step is compiled. Nothing is
wrong.

Right: no finding, or nothing that would make it much faster: the slow start comes once.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "the first batch waits until a compressed file is unpacked"


def train(run):
    import optax
    from flax import nnx

    rng = np.random.default_rng(0)
    photos = (rng.random((16000, 28, 28, 1)) > 0.7).astype("float32")
    labels = rng.integers(0, 10, 16000)
    np.savez_compressed(folder() / "digits.npz", x=photos, y=labels)

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Conv(1, 24, (3, 3), strides=2, rngs=rngs)
            self.second = nnx.Conv(24, 48, (3, 3), strides=2, rngs=rngs)
            self.out = nnx.Linear(2352, 10, rngs=rngs)

        def __call__(self, x):
            hidden = nnx.relu(self.second(nnx.relu(self.first(x))))
            return self.out(hidden.reshape(len(x), -1))

    def batches():
        if run.does("without"):
            x, y = photos, labels
        else:
            with np.load(folder() / "digits.npz") as file:
                x, y = file["x"], file["y"]
        for _ in range(5):
            order = rng.permutation(len(x))
            for start in range(0, len(x) - 63, 64):
                rows = order[start : start + 64]
                yield x[rows], y[rows]

    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss_of(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        loss, slopes = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, slopes)
        return loss

    with run.monitor() as monitor:
        for count, (x, y) in enumerate(monitor.batches(batches())):
            loss = step(model, optimizer, x, y)
            if count % 100 == 0:
                print(count, float(loss))
    loss.block_until_ready()


if __name__ == "__main__":
    main(train)
