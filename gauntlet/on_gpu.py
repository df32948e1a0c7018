"""Programs for an NVIDIA GPU, on JAX and PyTorch: what slows trainings there, and trainings that nothing slows.

A recorded one has two profiler windows: the callback's first one would come after the program's end.
"""

from __future__ import annotations

import functools
import io

from gauntlet.fits import PREDICT, dqn
from gauntlet.helpers import convnet, images, jax, keras, mlp, np, rows, torch
from gauntlet.registry import INPUT, program

on_jax = functools.partial(program, backend="jax", gpu=True)
on_torch = functools.partial(program, backend="torch", gpu=True)

WORKERS = {"workers": r"workers\s*=\s*(\d+)"}
PROCESSES = {"processes": r"workers\s*=\s*(\d+)[\s\S]*use_multiprocessing\s*=\s*True"} | WORKERS
BFLOAT16 = {"bfloat16": r"mixed_bfloat16|dtype=torch\.bfloat16"}
LARGER = {"larger": r"batch_size\s*=\s*(\d+)"}
SEVERAL = {"several": r"steps_per_execution=(\d+)"} | LARGER
LAUNCHES = r"\A(launch_bound|sync_bound)"


def _batch_size(run, size):
    """Return the size of a batch: four times as large, or as the printed cure has it."""
    larger = run.number(4) if run.does("larger") else 1
    return larger if larger > size else larger * size  # "batch_size = 4 * batch_size" or "batch_size=128"


def _fit(run, model, x, y, batch):
    """Train once on arrays, with windows."""
    model.fit(x, y, batch_size=batch, verbose=0, callbacks=run.traced(len(x) // batch))
    return model


def _descend(optimizer, loss):
    """Take PyTorch's step of training."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# -- slow input ------------------------------------------------------------------------------------


def _residual_net(size):
    if size < 100:  # only tried
        return convnet(size)
    model = keras.applications.ResNet50(weights=None, classes=10, input_shape=(size, size, 3))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def _decoded(data, size):
    """Return the image of a JPEG file, scaled to the model's size by PIL."""
    from PIL import Image

    return np.asarray(Image.open(data).convert("RGB").resize((size, size)), "float32") / 255


def _jpegs(count, size=512):
    """Return the bytes of JPEG files."""
    from PIL import Image

    files = []
    for image in images(count, size):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    return files


def _same_batch(x, y, steps):
    """Return a PyDataset of one batch, which is ready, again and again."""

    class Ready(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            return x, y

    return Ready()


def _batches_of_files(run, steps, size):
    """Return a PyDataset that decodes 64 JPEG files a batch."""
    files = _jpegs(64)

    class Files(keras.utils.PyDataset):
        def __len__(self):
            return steps

        def __getitem__(self, index):
            x = np.stack([_decoded(io.BytesIO(file), size) for file in files])
            return x, np.arange(64) % 2

    workers = run.number(4) if run.does("workers", "processes") else 1
    return Files(workers=workers, use_multiprocessing=run.does("processes"))


def _files(run):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    size = run.size(224, 64)
    model = _residual_net(size)
    steps = run.steps(24)
    model.fit(_batches_of_files(run, steps, size), verbose=0, callbacks=run.traced(steps))
    return model


@on_jax("JPEG files are decoded one batch at a time, beside a ResNet-50", "input", INPUT, cures=PROCESSES)
def resnet_files_jax(run):
    return _files(run)


@on_torch("JPEG files are decoded one batch at a time, beside a ResNet-50", "input", INPUT, cures=PROCESSES)
def resnet_files_torch(run):
    return _files(run)


def _loader(run, size, count):
    workers = run.number(4) if run.does("workers") else 0
    files = _jpegs(16)

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, i):
            image = _decoded(io.BytesIO(files[i % 16]), size)
            return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), i % 10

    return torch.utils.data.DataLoader(
        Images(), batch_size=64, num_workers=workers, pin_memory=True, persistent_workers=workers > 0
    )


@on_torch("a loop over a DataLoader that decodes in the training process", "input", INPUT, cures=WORKERS)
def loop_loader(run):
    size, steps = run.size(224, 32), run.steps(24)
    device = run.device
    layers = [torch.nn.Conv2d(3, 64, 7, 4), torch.nn.ReLU()]
    for _ in range(6):
        layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    with run.monitor(steps) as monitor:
        for x, y in monitor.batches(_loader(run, size, 64 * steps)):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            _descend(optimizer, loss)


@on_jax(
    "images of 0 to 255 are copied as float32 out of PyDataset batches, for a small model",
    "without:bytes",
    r"\A(transfer_bound|input_bound)",
    cures={"bytes": r"uint8"},
    harmful=r"workers = ([4-9]|\d\d)",
)
def float_images_jax(run):
    size, steps = run.size(256, 32), run.steps(160)
    batch = images(256, size)
    batch = batch if run.does("bytes") else batch.astype("float32")
    labels = np.arange(256) % 2
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((size, size, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 7, strides=4, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(_same_batch(batch, labels, steps), verbose=0, shuffle=False, callbacks=run.traced(steps))
    return model


# -- the model and its precision -------------------------------------------------------------------


def _transformer(run, width, layers, length, batch, steps):
    """Train a transformer on tokens that are in memory."""
    batch, count = _batch_size(run, batch), batch * steps
    half = run.does("bfloat16")
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if half else run.policy)
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(1000, width)(tokens)
    for _ in range(layers):
        norm = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(width // 64, 64)(norm, norm)
        norm = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(norm))
    model = keras.Model(tokens, keras.layers.Dense(1000, dtype="float32")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    x = np.random.default_rng(0).integers(0, 1000, (count, length)).astype("int32")
    _fit(run, model, x, np.roll(x, -1, 1), batch)


def _large_transformer(run, steps):
    return _transformer(run, run.size(1024, 64), run.size(8, 1), run.size(256, 16), run.size(32, 4), run.steps(steps))


@on_jax("32-bit products, which JAX computes in TF32", "without:bfloat16", "tensor_cores", nothing=True, cures=BFLOAT16)
def transformer_jax(run):
    return _large_transformer(run, 150)


@on_torch("32-bit products on the ordinary cores", "without:bfloat16", "tensor_cores", cures=BFLOAT16)
def transformer_torch(run):
    return _large_transformer(run, 40)


@on_torch("a transformer in bfloat16, each operation launched by Python", "without:larger", LAUNCHES, cures=LARGER)
def transformer_half_torch(run):
    run.policy = "mixed_bfloat16"
    return _large_transformer(run, 150)


@on_jax("nothing: a transformer in bfloat16", "model", None, harmful="workers|batch_size")
def transformer_half_jax(run):
    run.policy = "mixed_bfloat16"
    return _large_transformer(run, 250)


# -- small steps -----------------------------------------------------------------------------------


def _small_batches(run, steps):
    batch, count = _batch_size(run, 32), 32 * run.steps(steps)
    x, y = rows(count, 64)
    several = run.number(10) if run.does("several") else 1
    model = mlp(64, units=256, layers=3, steps_per_execution=several)
    return _fit(run, model, x, y, batch)


@on_jax("steps of a small model in batches of 32, each started by Python", "without:several", LAUNCHES, cures=SEVERAL)
def small_batches_jax(run):
    return _small_batches(run, 5000)


@on_torch("steps of a small model in batches of 32, each started by Python", "without:larger", LAUNCHES, cures=SEVERAL)
def small_batches_torch(run):
    return _small_batches(run, 800)


def _every(run):
    """Return the number of steps after which a loop reads its loss."""
    return run.number(50) if run.does("seldom") else 1


def _recurrent(run, steps):
    batch, count = _batch_size(run, 32), 32 * run.steps(steps)
    length = run.size(100, 10)
    x = np.random.default_rng(0).normal(size=(count, length, 16)).astype("float32")
    model = keras.Sequential(
        [keras.Input((length, 16)), keras.layers.GRU(64, reset_after=False), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return _fit(run, model, x, x[:, 0, :1], batch)


@on_jax("a recurrent layer: a hundred small kernels behind each other", "without:larger", LAUNCHES, cures=SEVERAL)
def recurrent_jax(run):
    return _recurrent(run, 400)


@on_torch("a recurrent layer: each of a hundred steps launched by Python", "without:larger", LAUNCHES, cures=SEVERAL)
def recurrent_torch(run):
    return _recurrent(run, 60)


@on_torch(
    "every operation of a small step is launched by Python, and each loss is read",
    "without:compiled",
    LAUNCHES,
    cures={"seldom": r"step % (\d+)", "compiled": r"torch\.compile"},
)
def loop_reads_loss(run):
    steps = run.steps(10_000)
    device = run.device
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, y = (torch.from_numpy(one).to(device) for one in rows(256, 64))
    if run.does("compiled"):
        model = torch.compile(model, mode="reduce-overhead")
    every = _every(run)
    with run.monitor(steps) as monitor:
        for step in range(steps):
            with monitor.step():
                loss = torch.nn.functional.mse_loss(model(x), y)
                _descend(optimizer, loss)
                if step % every == 0:
                    run.last = loss.item()


@on_jax(
    "a callback reads the weights of each step, and the GPU waits for it",
    "without:seldom",
    r"\Ahost_stall\nWatcher",
    cures={"seldom": r"% \d+ == 0|on_epoch_end"},
)
def reading_callback_jax(run):
    steps = run.steps(600)

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not run.does("seldom") or batch % 100 == 0:
                run.last = [float(np.abs(np.asarray(w)).max()) for w in self.model.trainable_variables]

    x, y = rows(64 * steps, 64)
    model = mlp(64, units=2048, layers=3)
    model.fit(x, y, batch_size=64, verbose=0, callbacks=[*run.traced(steps), Watcher()])
    return model


# -- around the steps ------------------------------------------------------------------------------


@on_jax(
    "validation decodes the same files after every epoch",
    "without:cached",
    "Validation",
    cures={"cached": r"once|cache", "seldom": r"validation_freq=(\d+)"} | PROCESSES,
)
def validation_files_jax(run):
    size, steps = run.size(128, 64), run.steps(60)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = _residual_net(size)
    x = images(64, size).astype("float32") / 255
    y = np.arange(64) % 2
    checked = _batches_of_files(run, run.steps(4), size)
    if run.does("cached"):
        first, labels = checked[0]
        checked = (np.concatenate([first] * len(checked)), np.concatenate([labels] * len(checked)))
    seldom = run.number(2) if run.does("seldom") else 1
    model.fit(
        _same_batch(x, y, steps),
        epochs=4,
        verbose=0,
        validation_data=checked,
        validation_freq=seldom,
        callbacks=run.traced(4 * steps),
    )
    return model


@on_jax(
    "every new length of a batch is compiled again", "without:padded", "recompilation", cures={"padded": r"pad|bucket"}
)
def lengths_jax(run):
    lengths = [int(length) for length in np.random.default_rng(0).permutation(np.arange(100, 100 + run.steps(6)))]

    class Texts(keras.utils.PyDataset):
        def __len__(self):
            return len(lengths) * 10

        def __getitem__(self, index):
            width = 128 if run.does("padded") else lengths[index % len(lengths)]
            x = np.ones((32, width), "int32")
            return x, np.zeros((32, 1), "float32")

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(1000, 128),
            layers.Conv1D(128, 5, activation="relu"),
            layers.Conv1D(128, 5, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    model.fit(Texts(), verbose=0, shuffle=False, callbacks=run.traced(len(lengths) * 10))
    return model


@on_jax(
    "model.predict is called for each action, between fits of one batch", "without:called", "predict", cures=PREDICT
)
def dqn_jax(run):
    return dqn(run, on_gpu=True)


@on_torch("the model was left on the CPU", "without:moved", r"\Acpu_fallback", cures={"moved": r"cuda|to\("})
def forgotten_cpu(run):
    steps = run.steps(40)
    device = run.device if run.does("moved") else "cpu"
    width = run.size(2048, 64)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)]).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(512, width)
    with run.monitor(steps) as monitor:
        for _ in range(steps):
            with monitor.step():
                x = data.to(device)
                loss = (model(x) ** 2).mean()
                _descend(optimizer, loss)


@on_torch(
    "nothing: large products in bfloat16, whose batches are copied from pinned memory", "any", None, harmful="workers"
)
def pinned_copies(run):
    steps, device = run.steps(600), run.device
    width = run.size(8192, 64)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    host = torch.randn(4096 if width > 64 else 16, width).to(torch.bfloat16)
    host = host.pin_memory() if device != "cpu" else host
    with run.monitor(steps) as monitor:
        for _ in range(steps):
            with monitor.step():
                loss = model(host.to(device, non_blocking=True)).float().square().mean()
                _descend(optimizer, loss)


@on_jax(
    "a compiled step in a loop, each of whose results is read",
    "without:seldom",
    LAUNCHES,
    cures={"seldom": r"step % (\d+)"},
)
def loop_reads_loss_jax(run):
    steps, width = run.steps(15_000), run.size(1024, 64)
    jnp = jax.numpy

    @jax.jit
    def train_step(weights, x):
        loss, gradients = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2))(weights)
        return weights - 1e-3 * gradients, loss

    weights = jnp.ones((width, width)) / width
    x = jnp.ones((256, width))
    every = _every(run)
    with run.monitor(steps) as monitor:
        for step in range(steps):
            with monitor.step():
                weights, loss = train_step(weights, x)
                if step % every == 0:
                    run.last = float(loss)
