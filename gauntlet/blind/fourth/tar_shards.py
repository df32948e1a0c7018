"""A JAX loop over tar shards, the next of which is downloaded when one has been read (webdataset-like loaders that
somebody wrote anew).

Right: the input, in a few long waits: one in forty batches waits for a download, in `samples`: fetch shards ahead in
threads (several, as a download takes longer than the training on a shard), or keep them on disk; the other batches
wait for nothing.
"""

import io
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, jax

BACKEND, CAUSE, USES = "jax", "the next shard is downloaded (0.8 s) only when the last one has been read", "monitor"
REMEDY = "download ahead in three threads"


def pack(bucket):
    """Write eight shards of forty batches."""
    rng = np.random.default_rng(0)
    for shard in range(8):
        with tarfile.open(bucket / f"train-{shard:04}.tar", "w") as tar:
            for batch in range(40):
                stored = io.BytesIO()
                np.save(stored, rng.random((64, 256), "float32"))
                member = tarfile.TarInfo(f"{batch:04}.npy")
                member.size = stored.tell()
                stored.seek(0)
                tar.addfile(member, stored)


def train(run):
    import jax.numpy as jnp
    import optax

    pack(folder())

    def download(shard):
        if not run.does("without"):
            time.sleep(0.8)  # 60 MB at the speed of the line
        return io.BytesIO((folder() / f"train-{shard:04}.tar").read_bytes())

    def shards():
        if not run.does("remedy"):
            yield from map(download, range(8))
            return
        with ThreadPoolExecutor(3) as pool:
            yield from pool.map(download, range(8))

    def samples():
        for file in shards():
            with tarfile.open(fileobj=file) as tar:
                for member in tar:
                    yield np.load(io.BytesIO(tar.extractfile(member).read()))

    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(256, 768), (768, 768), (768, 256)]
    weights = [0.05 * jax.random.normal(key, size) for key, size in zip(keys, sizes, strict=True)]
    optimizer = optax.adamw(1e-3)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, x, key):
        def loss_of(weights):
            hidden = x * jax.random.bernoulli(key, 0.7, x.shape)
            for layer in weights[:-1]:
                hidden = jax.nn.relu(hidden @ layer)
            return jnp.mean((hidden @ weights[-1] - x) ** 2)

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    key = jax.random.key(1)
    with run.monitor() as monitor:
        for count, x in enumerate(monitor.batches(samples())):
            key, now = jax.random.split(key)
            weights, state, loss = step(weights, state, x, now)
            if count % 40 == 39:
                print(count + 1, float(loss))


if __name__ == "__main__":
    main(train)
