"""Keras on PyTorch, with a DataLoader."""

from __future__ import annotations

from gauntlet.helpers import compute, mlp, np, rows, sleep_ms, torch
from gauntlet.registry import INPUT, program

WORKERS = r"num_workers=(\d+)"
ONCE = r"torch\.save|TensorDataset|once"


def _loader(function, run, workers=0, count=800, epochs=9, layers=2, units=64):
    x, y = rows(count, 8)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, i):
            function()
            return x[i], y[i]

    def one_thread(_):
        import threadpoolctl

        threadpoolctl.threadpool_limits(1)

    workers = run.number(2) if run.does("workers") else workers
    data = Rows()
    model = mlp(8, layers=layers, units=units)
    callbacks = run.callbacks
    if run.does("once"):
        data = [data[i] for i in range(count)]
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=16,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=one_thread if run.does("limited") else None,
    )
    model.fit(loader, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


@program(
    "samples wait, in the training process", "input", INPUT, backend="torch", cures={"workers": WORKERS, "once": ONCE}
)
def loader_sleeping(run):
    return _loader(lambda: sleep_ms(2), run)


@program(
    "samples wait, in the training process; others keep both cores busy",
    "input",
    INPUT,
    backend="torch",
    burners=2,
    cures={"workers": WORKERS, "once": ONCE},
)
def loader_sleeping_busy(run):
    return _loader(lambda: sleep_ms(2), run)


@program(
    "samples wait, and one worker is too few", "input", INPUT, backend="torch", cures={"workers": WORKERS, "once": ONCE}
)
def loader_one_worker(run):
    return _loader(lambda: sleep_ms(3), run, workers=1)


@program(
    "samples compute in Python, in the training process; the step has two threads",
    "input",
    INPUT,
    backend="torch",
    cures={"workers": WORKERS, "once": ONCE},
)
def loader_computing(run):
    return _loader(lambda: compute(50_000), run)


@program(
    "two workers that compute keep both cores busy",
    "input",
    INPUT,
    backend="torch",
    cures={"once": ONCE},
    harmful=r"num_workers=[3-9]",
)
def loader_full(run):
    return _loader(lambda: compute(60_000), run, workers=2)


@program(
    "two workers whose BLAS threads fight for two cores",
    "input",
    INPUT,
    backend="torch",
    cures={"limited": "threadpool|NUM_THREADS|set_num_threads", "once": ONCE},
    harmful=r"num_workers=[3-9]",
)
def loader_fighting(run):
    matrix = np.random.default_rng(0).normal(size=(120, 120))
    return _loader(lambda: np.linalg.svd(matrix), run, workers=2, count=240)


@program(
    "rows in memory, and steps of 16 rows, most of which the optimizer takes",
    "model",
    "larger batches",  # of 64 rows: an epoch is 3.2 and 3.3 times as fast (two pairs, a quiet machine)
    nothing=True,
    backend="torch",
    harmful="workers",
)
def loader_ready(run):
    return _loader(lambda: None, run, count=1600, layers=4, units=1024)
