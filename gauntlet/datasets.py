"""PyDataset and Grain, on three backends."""

from __future__ import annotations

from gauntlet.helpers import compute, convnet, jpegs, keras, mlp, np, rows, sleep_ms
from gauntlet.registry import INPUT, program

WORKERS = r"\.workers = (\d+)(?![\s\S]*multiprocessing)"
PROCESSES = r"\.workers = (\d+)[\s\S]*use_multiprocessing = True"
ONCE = r"\[dataset\[i\] for i in range|once"
CURES = {"processes": PROCESSES, "threads": WORKERS, "once": ONCE}


def _pydataset(function, run, batches=50, epochs=9, workers=1, processes=False):
    x, y = rows(16 * batches, 8)

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return batches

        def __getitem__(self, i):
            function()
            return x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]

    data = Rows(workers=workers, use_multiprocessing=processes)
    if run.does("threads", "processes"):
        data.workers = run.number(2)
        data.use_multiprocessing = run.does("processes")
    model = mlp(8)
    callbacks = run.callbacks
    if run.does("once"):
        made = [data[i] for i in range(batches)]
        Rows.__getitem__ = lambda self, i: made[i]
    model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


@program("__getitem__ waits, one batch at a time", "input", INPUT, cures=CURES)
def pydataset_sleeping(run):
    return _pydataset(lambda: sleep_ms(30), run)


@program("__getitem__ waits, one batch at a time", "input", INPUT, cures=CURES, backend="jax")
def pydataset_sleeping_jax(run):
    return _pydataset(lambda: sleep_ms(30), run)


@program(
    "__getitem__ waits, one batch at a time; others keep both cores busy",
    "input",
    INPUT,
    cures=CURES,
    backend="torch",
    burners=2,
    harmful="use_multiprocessing = True",
)
def pydataset_sleeping_torch_busy(run):
    return _pydataset(lambda: sleep_ms(30), run)


@program("__getitem__ computes in Python", "input", INPUT, cures=CURES)
def pydataset_computing(run):
    return _pydataset(lambda: compute(500_000), run)


@program("__getitem__ computes in Python, in two threads that share its lock", "input", INPUT, cures=CURES)
def pydataset_threads_computing(run):
    return _pydataset(lambda: compute(500_000), run, workers=2)


@program(
    "two processes of __getitem__ and the model keep both cores busy",
    "input",
    INPUT,
    cures={"once": ONCE},
    backend="torch",
    harmful=r"\.workers = |num_workers",
)
def pydataset_processes_full(run):
    return _pydataset(lambda: compute(700_000), run, workers=2, processes=True)


@program("JPEG files are decoded with PIL for each batch", "input", INPUT, cures=CURES)
def pydataset_jpeg(run):
    from PIL import Image

    paths, batches = sorted(jpegs().rglob("*.jpg")), 20

    def decoded(path):
        return np.asarray(Image.open(path).resize((64, 64)), "float32")

    class Images(keras.utils.PyDataset):
        def __len__(self):
            return batches

        def __getitem__(self, i):
            files = paths[16 * i : 16 * i + 16]
            return np.stack([decoded(path) for path in files]), np.arange(16) % 2

    data = Images(workers=run.number(1), use_multiprocessing=run.does("processes"))
    model = convnet(64, 8, keras.layers.Rescaling(1 / 255))
    callbacks = run.callbacks
    if run.does("once"):
        made = [data[i] for i in range(batches)]
        Images.__getitem__ = lambda self, i: made[i]
    model.fit(data, epochs=15, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def _grain(function, run):
    import absl.flags
    import grain

    if not absl.flags.FLAGS.is_parsed():
        absl.flags.FLAGS.mark_as_parsed()
    x, y = rows(800, 8)

    def element(i):
        function()
        return x[i], y[i]

    data = grain.MapDataset.range(len(x)).map(element).batch(16)
    if run.does("workers"):
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=run.number(2))
        data = data.to_iter_dataset().mp_prefetch(options)
    model = mlp(8)
    model.fit(data, epochs=9, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "a Grain map computes in Python; both cores are needed",
    "input",
    INPUT,
    backend="jax",
    cures={"workers": r"num_workers=(\d+)"},
)
def grain_computing(run):
    return _grain(lambda: compute(40_000), run)


@program("nothing: Grain's map is cheap", "any", None, nothing=True, backend="jax", harmful="workers")
def grain_ready(run):
    return _grain(lambda: None, run)
