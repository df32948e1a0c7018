"""Satellite tiles in one .tar.gz, read in a new order in each epoch: whoever goes back in a gzip stream unpacks it
from its start (libarchive/libarchive#2638).

Right: the input: `extractfile(...).read()` in the generator `batches` unpacks on average a third or half of the
archive for each tile: unpack the archive once (a plain .tar, or files), or read it in its order and shuffle within a
buffer; not that the tiles are costly to parse, and not the model.
"""

import io
import tarfile

from gauntlet.blind import main
from gauntlet.helpers import folder, images, jax, np

BACKEND, CAUSE, USES = (
    "jax",
    "tiles are read in random order from a .tar.gz, which is unpacked from its start",
    "monitor",
)


def train(run):
    import optax

    generator = np.random.default_rng(0)
    path = folder() / "tiles.tar"
    with tarfile.open(path, "w" if run.does("without") else "w:gz") as archive:
        for i, tile in enumerate(images(480, 48)):
            packed = io.BytesIO()
            np.save(packed, tile)
            member = tarfile.TarInfo(f"tiles/{i:05}.npy")
            member.size = packed.tell()
            packed.seek(0)
            archive.addfile(member, packed)

    def network(weights, tiles):
        for name in ("first", "second"):
            tiles = jax.nn.relu(jax.lax.conv_general_dilated(
                tiles, weights[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ))  # fmt: skip
        return tiles.mean((1, 2)) @ weights["head"]

    shapes = {"first": (3, 3, 3, 32), "second": (3, 3, 32, 64), "head": (64, 6)}
    weights = {name: generator.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, tiles, cover):
        def loss_of(weights):
            return optax.softmax_cross_entropy_with_integer_labels(network(weights, tiles / 255), cover).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state, loss

    def batches():
        order = generator.permutation(480)
        for chosen in order.reshape(-1, 24):
            tiles = [np.load(io.BytesIO(archive.extractfile(members[i]).read())) for i in chosen]
            yield np.stack(tiles).astype("float32"), chosen % 6

    with tarfile.open(path) as archive, run.monitor() as monitor:
        members = archive.getmembers()
        for _ in range(4):
            for tiles, cover in monitor.batches(batches()):
                weights, state, loss = step(weights, state, tiles, cover)
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
