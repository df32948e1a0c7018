"""Recordings of a sensor lie in a file that is mapped into memory; a thread cuts windows out of it and puts them into a
queue, four batches ahead of the compiled step. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the thread is ahead of the steps and has little to do,
and the loss is read every twentieth step.
"""

import queue
import threading

from gauntlet.blind import main
from gauntlet.helpers import folder, jax, np

BACKEND, CAUSE, USES = "jax", "", "monitor"
NOISE = "a thread reads ahead into a queue, and the loss is printed every twentieth step"


def train(run):
    import optax

    generator = np.random.default_rng(0)
    np.save(folder() / "sensor.npy", generator.normal(size=(400_000, 6)).astype("float32"))
    sensor = np.load(folder() / "sensor.npy", mmap_mode="r")

    def batches():
        for starts in generator.integers(0, 399_000, (240, 48)):
            windows = np.stack([sensor[start : start + 256] for start in starts])
            yield windows, starts % 4

    def ahead():
        ready = queue.Queue(4)

        def fill():
            for batch in batches():
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=fill, daemon=True).start()
        while (batch := ready.get()) is not None:
            yield batch

    shapes = {"first": (9, 6, 32), "second": (9, 32, 64), "third": (9, 64, 64), "head": (64, 4)}
    weights = {name: generator.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    optimizer = optax.adamw(1e-3)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, x, y):
        def loss_of(weights):
            hidden = x
            for name in ("first", "second", "third"):
                sides = ("NHC", "HIO", "NHC")
                hidden = jax.lax.conv_general_dilated(hidden, weights[name], (2,), "SAME", dimension_numbers=sides)
                hidden = jax.nn.relu(hidden)
            scores = hidden.mean(1) @ weights["head"]
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    with run.monitor() as monitor:
        for number, (x, y) in enumerate(monitor.batches(batches() if run.does("without") else ahead())):
            weights, state, loss = step(weights, state, x, y)
            if number % 20 == 19 and not run.does("without"):
                print(f"step {number}: {float(loss):.3f}")
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
