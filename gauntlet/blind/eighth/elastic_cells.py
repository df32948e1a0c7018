"""Cells are segmented under a microscope with the recipe of the U-Net paper; the step is compiled and quick, and the
accelerator idles most of the time (MIC-DKFZ/batchgenerators#5, gvtulder/elasticdeform#6).

Right: the input: `deformed`, called by the generator `batches`, smooths a random field and interpolates image and mask
by splines, one after another, in the training process: interpolate linearly (`order=1`), draw a coarse field and
enlarge it, make the batches in other processes, or deform on the accelerator; not `cache`, as each is drawn anew, and
not the step.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, jax, np

BACKEND, CAUSE, USES = "jax", "scipy deforms each image and its mask by splines in the batch generator", "monitor"


def train(run):
    import optax
    from scipy import ndimage

    generator = np.random.default_rng(0)
    cells = images(240, 192)[..., 0].astype("float32") / 255
    masks = (cells > 0.5).astype("float32")
    grid = np.stack(np.meshgrid(np.arange(192), np.arange(192), indexing="ij")).astype(float)

    def deformed(cell, mask):
        field = generator.uniform(-1, 1, (2, 192, 192))
        where = grid + 200 * np.stack([ndimage.gaussian_filter(part, 16) for part in field])
        return ndimage.map_coordinates(cell, where, order=3), ndimage.map_coordinates(mask, where, order=0)

    def batches():
        for chosen in generator.permutation(240).reshape(-1, 8):
            pairs = [(cells[i], masks[i]) for i in chosen]
            if not run.does("without"):
                pairs = [deformed(*pair) for pair in pairs]
            x, y = (np.stack(part)[..., None] for part in zip(*pairs, strict=True))
            yield x, y[:, ::2, ::2]

    shapes = {"first": (3, 3, 1, 12), "second": (3, 3, 12, 12), "last": (3, 3, 12, 1)}
    weights = {name: generator.normal(0, 0.1, shape).astype("float32") for name, shape in shapes.items()}
    optimizer = optax.adam(1e-3)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, x, y):
        def loss_of(weights):
            hidden = x
            for name, stride in (("first", 2), ("second", 1), ("last", 1)):
                sides = ("NHWC", "HWIO", "NHWC")
                hidden = hidden if name == "first" else jax.nn.relu(hidden)
                hidden = jax.lax.conv_general_dilated(
                    hidden, weights[name], (stride, stride), "SAME", dimension_numbers=sides
                )
            return optax.sigmoid_binary_cross_entropy(hidden, y).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), state, loss

    with run.monitor() as monitor:
        for _ in range(4):
            for x, y in monitor.batches(batches()):
                weights, state, loss = step(weights, state, x, y)
        loss.block_until_ready()


if __name__ == "__main__":
    main(train)
