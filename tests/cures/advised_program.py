"""Trains on the backend that KERAS_BACKEND names, follows the printed advice, trains again."""

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from advised import Given, apply, findings

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, ceilings, read_recordings
from gpu_util_callback.diagnosis import run_report

BACKEND = keras.backend.backend()
FOLDER = Path(tempfile.mkdtemp(prefix="advised-"))
STEPS, MAKE_S, WORK_S = 80, 0.06, 0.03


def slow_model(step_s: float) -> Any:
    """A model whose step takes `step_s`, without the CPU, on any backend."""

    def wait(value: Any) -> Any:
        time.sleep(step_s)
        return value

    class Works(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            backend = keras.backend.backend()
            if backend == "tensorflow":
                import tensorflow as tf
                from timed_fit import pause

                return tf.ensure_shape(pause(x, 1e3 * step_s), x.shape)
            if backend == "torch":
                return wait(x)
            import jax

            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(wait, shape, jax.lax.stop_gradient(x))

    layers = [keras.Input((8,), batch_size=4), Works(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    return model


def make_batch(index):
    time.sleep(MAKE_S)
    return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")


class Made(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return make_batch(index)


def generated():
    for index in range(STEPS):
        yield make_batch(index)


def report_of(name):
    [recording] = read_recordings(FOLDER / name)
    return run_report(recording)


def fit(name, data, **kwargs):
    return trained(name, slow_model(WORK_S), data, **kwargs)


def trained(name, _model, _data, callbacks=(), **kwargs):  # names that no code is printed with
    callback = GpuUtilCallback(FOLDER / name, trace="off", report=False)
    _model.fit(_data, verbose=0, callbacks=[*callbacks, callback], **kwargs)
    return report_of(name)


def loop(name, _data):
    with GpuUtilMonitor(FOLDER / name, framework=BACKEND, trace="off", report=False) as monitor:
        for _ in monitor.batches(_data):
            time.sleep(WORK_S)
    return report_of(name)


def torch_data():
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 4 * STEPS

        def __getitem__(self, index):
            time.sleep(MAKE_S / 4)
            return np.ones(8, "float32"), np.ones(1, "float32")

    return torch, Samples()


def told(before):
    [span] = findings(before, "input_bound")
    return span["advice"]["code"]


# What a process does once, at its first fit with inputs of a kind, is not the input's to save: each
# group begins with a fit of two steps.


def fit_dataset():
    fit("dataset-0", Made(), steps_per_epoch=2)
    before = fit("dataset-1", Made())
    return before, fit("dataset-2", apply(told(before), dataset=Made())["dataset"])


def fit_measured():
    """The same, shorter; what a perfect input gains is measured between the two fits."""
    global STEPS, MAKE_S, WORK_S
    STEPS, MAKE_S, WORK_S = 40, 0.05, 0.025
    fit("measured-0", Made(), steps_per_epoch=2)
    before = fit("measured-1", Made())
    found = ceilings(slow_model(WORK_S), Made(), seconds=2, progress=False)
    after = fit("measured-2", apply(told(before), dataset=Made())["dataset"])
    return before, after, found.to_dict()


def fit_generator():
    fit("generator-0", generated(), steps_per_epoch=2)
    before = fit("generator-1", generated(), steps_per_epoch=STEPS)
    names = apply(told(before), keras=keras, make_batch=make_batch, number_of_batches=STEPS)
    return before, fit("generator-2", names["dataset"])


def loader(train, name):
    """A DataLoader without workers, and the one that the advice makes of it."""
    torch, dataset = torch_data()
    given = Given(torch.utils.data.DataLoader, dataset, batch_size=4)
    few = torch.utils.data.Subset(dataset, range(8))
    train(f"{name}-0", torch.utils.data.DataLoader(few, batch_size=4))
    before = train(f"{name}-1", given(...))
    apply(told(before), DataLoader=given, dataset=dataset)
    return before, train(f"{name}-2", given.result)


def fit_loader():
    return loader(fit, "loader")


def loop_loader():
    return loader(loop, "loop-loader")


def starts_late(worker):
    time.sleep(0.6)


def fit_workers():
    """Worker processes that take their time to start, in every epoch; and such that stay."""
    global MAKE_S, WORK_S
    MAKE_S, WORK_S = 0.0, 0.08  # long beside the handing over of a batch
    torch, dataset = torch_data()
    few = torch.utils.data.Subset(dataset, range(8))
    fit("workers-0", torch.utils.data.DataLoader(few, batch_size=4))
    given = Given(
        torch.utils.data.DataLoader,
        torch.utils.data.Subset(dataset, range(40)),
        batch_size=4,
        num_workers=1,
        worker_init_fn=starts_late,
    )
    before = fit("workers-1", given(...), epochs=5)
    apply(told(before), DataLoader=given, dataset=given.arguments[0])
    return before, fit("workers-2", given.result, epochs=5)


def loop_generator():
    global MAKE_S, WORK_S
    MAKE_S, WORK_S = 0.03, 0.05  # one thread can keep up
    loop("loop-generator-0", itertools.islice(generated(), 2))
    before = loop("loop-generator-1", generated())
    names = apply(told(before), generated=lambda *_: generated())
    return before, loop("loop-generator-2", names["dataset"])


def loop_slow_generator():
    """Slower than the step: a thread that makes the next one would not be enough."""
    global MAKE_S, WORK_S
    MAKE_S, WORK_S = 0.06, 0.02
    loop("slow-generator-0", itertools.islice(generated(), 2))
    before = loop("slow-generator-1", generated())
    names = apply(told(before), make_batch=make_batch, number_of_batches=STEPS)
    return before, loop("slow-generator-2", names["dataset"])


def shapes():
    """A model that is compiled for each length of its input, until these are padded."""

    def model():
        made = keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                keras.layers.Embedding(100, 16),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        made.compile("sgd", "mse", jit_compile=True)
        return made

    class Texts(keras.utils.PyDataset):
        code, most = "", 20

        def __len__(self):
            return 40

        def __getitem__(self, index):
            x = np.ones((8, 32 + 6 * (index % self.most)), "int32")
            if self.code:
                x = apply(self.code, x=x, np=np)["x"]
            return x, np.ones((8, 1), "float32")

    def run(name, data):
        # Time that no advice changes: else the factor hangs on the few steps that are left.
        rest = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(2))
        return trained(name, model(), data, callbacks=[rest], epochs=2)

    alike = Texts()
    alike.most = 1
    run("shapes-0", alike)  # what only the first of such models pays
    before = run("shapes-1", Texts())
    [span] = findings(before, "recompilation")
    after = Texts()
    after.code = span["advice"]["code"]
    return before, run("shapes-2", after)


if __name__ == "__main__":
    for group in sys.argv[1:]:
        first, second, *measured = globals()[group]()
        kept = ("wall_s", "time_s", "step_ms", "spans", "findings")
        runs = [{name: run[name] for name in kept} for run in (first, second)]
        print("RESULT", group, json.dumps([*runs, *measured]))
