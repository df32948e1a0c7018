"""Keras fits on the backend that KERAS_BACKEND names, recorded, against injected truths."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import injected_fit
import keras
import numpy as np
from device_reads import counted_reads
from injected import BATCH, PER_DELAY, WIDTH, Truth, close, mapped, medians, report, summary
from injected_fit import Made, Wanted, recorded_fit

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.recorder import recorder

BACKEND = keras.backend.backend()
FOLDER = Path(tempfile.mkdtemp(prefix="backends-"))
PULLED = ("generator", "PyDataset", "DataLoader", "tf.data")


class Everybody(keras.callbacks.Callback):
    """A callback that makes Keras call the end hooks synchronously."""

    def __init__(self, truth):
        super().__init__()
        self.truth = truth

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.001)
        if BACKEND == "torch" and batch + 1 < len(self.truth):
            self.truth.wanted[batch + 1] = time.perf_counter_ns()


class Stopped(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt


def given(kind: str, truth: Truth) -> dict:
    if kind == "tf.data":
        return {"x": mapped(truth)}
    if not kind.startswith("DataLoader"):
        workers = {"workers": 2, "max_queue_size": 2} if "workers" in kind else {}
        return injected_fit.given(kind, truth, **workers)
    from torch.utils.data import DataLoader, Dataset

    class Batches(Dataset):
        def __len__(self):
            return len(truth)

        def __getitem__(self, k):
            return truth.make(k)

    workers = 2 if "workers" in kind else 0
    first = lambda items: tuple(map(np.copy, items[0]))  # noqa: E731
    loader = DataLoader(Batches(), batch_size=1, num_workers=workers, collate_fn=first)
    return {"x": loader}


class Worker(keras.Sequential):
    """A model whose steps take as long as they are told, on the device where it has one."""

    truth: Truth | None = None
    work_ms = 0.0
    count = 0

    def work(self, *_) -> np.float32:
        time.sleep(self.work_ms / 1e3)
        if self.truth is not None and self.count < len(self.truth):
            self.truth.worked[self.count] = time.perf_counter_ns()
            # Where batches are fetched before the begin hooks, the next is wanted from here on.
            if BACKEND == "torch" and self.count + 1 < len(self.truth):
                self.truth.wanted[self.count + 1] = time.perf_counter_ns()
        self.count += 1
        return np.float32(0)

    def train_step(self, *arguments):
        if not self.work_ms:
            return super().train_step(*arguments)
        if BACKEND == "torch":
            logs = super().train_step(*arguments)
            self.work()
            return logs
        import jax
        from jax.experimental import io_callback

        logs, state = super().train_step(*arguments)
        done = io_callback(self.work, jax.ShapeDtypeStruct((), "float32"), logs["loss"])
        return {**logs, "work": done}, state


def model(work_ms: float = 0, truth: Truth | None = None, size: int = 16, **compiled) -> Worker:
    wide = keras.layers.Dense(size, activation="relu", name="wide")
    made = Worker([keras.layers.Input((WIDTH,)), wide, keras.layers.Dense(1)])
    made.work_ms, made.truth = work_ms, truth
    made.compile("sgd", "mse", **compiled)
    return made


def fit(model, name: str, *, ours=True, **arguments):
    """A recorded fit; its recording."""
    if ours:
        return recorded_fit(model, FOLDER / name, **arguments)
    return model.fit(**{"verbose": 0, **arguments})


# ---- what is tried; each prints its own results ------------------------------------------------


# Every kind of input, every mode and both lengths of a step, in few fits.
COVERING = [
    ("generator", "plain", "short"),
    ("generator", "synchronous", "long"),
    ("generator", "eager", "short"),
    ("PyDataset", "plain", "short"),
    ("PyDataset workers", "plain", "long"),
    ("numpy", "plain", "short"),
]
BY_BACKEND = {
    "jax": [("tf.data", "plain", "short")],
    "torch": [
        ("DataLoader", "plain", "short"),
        ("DataLoader workers", "plain", "short"),
        ("DataLoader workers", "synchronous", "long"),
    ],
}


def waits() -> None:
    """The injected-wait table."""
    for case in COVERING + BY_BACKEND[BACKEND]:
        _wait(*case)


def _wait(kind: str, mode: str, step: str) -> None:
    if kind == "tf.data" and importlib.util.find_spec("tensorflow") is None:
        return
    for _ in range(3):
        truth = Truth(None if kind != "numpy" else [0.0] * (4 * PER_DELAY))
        trained = model(15 if step == "long" else 0.01, truth, run_eagerly=mode == "eager")
        if "workers" in kind:  # else Keras takes a batch to build the model from, and starts anew
            fit(trained, "", ours=False, **given("numpy", Truth([0.0])))
            trained.count = 0
        callbacks = [Everybody(truth)] if mode == "synchronous" else []
        if BACKEND != "torch":
            callbacks.append(Wanted(truth))
        recording = fit(trained, f"{kind}-{mode}-{step}", callbacks=callbacks, **given(kind, truth))
        ahead = kind not in PULLED
        wait = truth.wait_ms(ahead) if kind != "numpy" else np.zeros(len(truth))
        result = {
            **summary(recording),
            "truth": medians(wait),
            "measured": medians(recording.steps["input_wait_ns"] / 1e6),
        }
        # Keras makes tensors of PyTorch of each batch, behind where its maker stamps it.
        handed = kind == "tf.data" or "workers" in kind or BACKEND == "torch"
        measured = recording.steps["input_wait_ns"] / 1e6
        result["off"] = medians(measured - wait)
        result["good"] = close(measured, wait, handed)
        if result["good"]:
            break  # else once more: a neighbour may have disturbed it
    report(f"waits/{kind}/{mode}/{step}".replace(" ", "_"), **result)


def stages() -> None:
    """The stages of a tf.data pipeline that feeds training and validation."""
    if importlib.util.find_spec("tensorflow") is None:
        return
    import tensorflow as tf

    flush_s = recorder.FLUSH_S

    def decode(k):
        x = tf.numpy_function(lambda k: Truth([20.0]).make(0)[0], [k], tf.float32)
        x = tf.ensure_shape(x, (BATCH, WIDTH))
        return x, x[:, :1]

    recorder.FLUSH_S = 0.1
    data = tf.data.Dataset.range(40).map(decode)
    recording = fit(model(), "stages", x=data, validation_data=data)
    recorder.FLUSH_S = flush_s
    rows = recording.pipeline
    mapped = (rows["stage"] == "map(decode)") & (rows["which"] == "train")
    report(
        "stages",
        **summary(recording),
        found=sorted({(w, s) for w, s in zip(rows["which"], rows["stage"], strict=True)}),
        decode_ms=float(rows["processing_ns"][mapped].sum() / rows["elements"][mapped].sum() / 1e6),
        flags=sorted(set(rows["flags"][mapped])),
    )


class Spun(Truth):
    """Batches that take their time computing."""

    def make(self, k):
        until = time.thread_time() + self.delays_ms[k] / 1e3
        while time.thread_time() < until:
            pass
        return np.full((BATCH, WIDTH), 0.1, np.float32), np.zeros((BATCH, 1), np.float32)


def calls() -> None:
    """Python functions that make the input: some sleep, some compute."""
    kinds, trained = ["generator", "PyDataset", "PyDataset workers"], model()
    for kind in kinds + ["DataLoader", "DataLoader workers"] * (BACKEND == "torch"):
        for way in (Truth, Spun):
            truth = way([3.0] * 40)
            inputs = given(kind, truth)
            before = vars(inputs["x"]).copy() if kind != "generator" else {}
            recording = fit(trained, f"calls {kind} {way.__name__}", **inputs)
            report(
                f"calls/{kind}/{way.__name__}".replace(" ", "_"),
                calls=recording.facts["fit"].get("input_calls"),
                restored=all(vars(inputs["x"])[name] is before[name] for name in before),
                workers=len(multiprocessing.active_children()),
            )


class Heavy(keras.Sequential):
    """A model whose steps keep the device busy for a while after their call has returned (JAX)."""

    rounds = 1

    def train_step(self, *arguments):
        import jax
        import jax.numpy as jnp

        logs, state = super().train_step(*arguments)
        x = jnp.full((512, 512), 1e-3) + logs["loss"]
        x = jax.lax.fori_loop(0, self.rounds, lambda _, x: x @ x, x)
        return {"heavy": x[0, 0], **logs}, state


def hidden() -> None:
    """Fetches that the device's work hides, and fetches longer than that (JAX)."""
    import jax
    import jax.numpy as jnp

    square = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x @ x, x))
    x = jnp.full((512, 512), 1e-3)
    square(x).block_until_ready()
    start = time.perf_counter()
    square(x).block_until_ready()
    rounds = max(1, int(20 * 0.040 / (time.perf_counter() - start)))  # 40 ms a step
    for delay in (8.0, 100.0):
        truth = Truth([delay] * 9)
        trained = Heavy([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
        trained.rounds = rounds
        trained.compile("sgd", "mse")
        recording = fit(trained, f"hidden{delay:g}", **given("generator", truth))
        report(
            f"hidden/{delay:g}",
            **summary(recording),
            made_ms=(truth.wait_ms(ahead=False)[4:]).tolist(),
            get_ms=(recording.steps["input_get_ns"][4:] / 1e6).tolist(),
            wait_ms=(recording.steps["input_wait_ns"][4:] / 1e6).tolist(),
            body_ms=(recording.steps["body_ns"][4:] / 1e6).tolist(),
        )


def parallel() -> None:
    """`DataParallel`, and `ModelParallel` of wide weights, over eight devices (JAX)."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"), keras.distribution.list_devices())
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*wide.*kernel"] = (None, "model")
    layout[".*wide.*bias"] = ("model",)
    for distribution in (
        keras.distribution.DataParallel(auto_shard_dataset=False),
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False),
    ):
        keras.distribution.set_distribution(distribution)
        name = type(distribution).__name__
        truth, trained = Truth(), model(size=64)
        recording = fit(trained, name, callbacks=[Wanted(truth)], **given("generator", truth))
        wait, measured = truth.wait_ms(ahead=False), recording.steps["input_wait_ns"] / 1e6
        kernel = trained.layers[0].kernel.value
        report(
            name,
            **summary(recording),
            truth=medians(wait),
            measured=medians(measured),
            # Each batch is then split over the devices, which on a few cores hide some of its fetch.
            good=close(measured, wait, handed=True, slack_ms=2.5),
            shards=sorted({str(shard.data.shape) for shard in kernel.addressable_shards}),
            finite=bool(np.isfinite(np.asarray(jax.device_get(kernel))).all()),
        )


def executions() -> None:
    """Several steps per execution, with a partial last one."""
    n = 8 * 4 + 3
    truth = Truth([4.0] * n)
    trained = model(0.01, truth, steps_per_execution=8)
    recording = fit(trained, "executions", callbacks=[Wanted(truth)], **given("generator", truth))
    report(
        "executions",
        **summary(recording),
        batches=recording.steps["batches"].tolist(),
        truth_s=float(truth.wait_ms(False)[8:].sum() / 1e3),
        measured_s=float(recording.steps["input_wait_ns"][8:].sum() / 1e9),
    )


def logs() -> None:
    """The epoch's numbers among Keras' own, and a summary of the fit."""
    x = np.ones((96, WIDTH), "f")
    ours = GpuUtilCallback(str(FOLDER / "logs"), report=False, logs=True)
    fitted = {"batch_size": 8, "epochs": 3, "validation_split": 0.25, "verbose": 0}
    history = model().fit(x, x[:, :1], **fitted, callbacks=[ours]).history
    report("logs", history=history, summary=ours.summary())


class OneByOne(keras.callbacks.Callback):
    """From the second epoch on a call takes one batch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.steps_per_execution = 1
            self.model.make_train_function(force=True)


def regrouped() -> None:
    """Another number of batches a call from the second epoch on; Keras calls as often as before."""
    data = np.ones((8 * 12, WIDTH), "f"), np.ones((8 * 12, 1), "f")
    trained = model(steps_per_execution=4)
    recording = fit(trained, "regrouped", x=data[0], y=data[1], batch_size=8, epochs=3, callbacks=[OneByOne()])
    report("regrouped", **summary(recording), batches=recording.steps["batches"].tolist())


def shapes() -> None:
    """Four batch sizes, each twice: which steps were compilations?"""
    sizes = [8, 8, 8, 12, 12, 16, 16, 20, 20, 8]

    def data():
        for size in sizes:
            yield np.ones((size, WIDTH), "f"), np.ones((size, 1), "f")

    recording = fit(model(), "shapes", x=data(), steps_per_epoch=len(sizes))
    report(
        "shapes",
        **summary(recording),
        compile_ms=(recording.steps["compile_ns"] / 1e6).tolist(),
        duration_ms=(recording.steps["duration_ns"] / 1e6).tolist(),
        shape_ids=recording.steps["shape_id"].tolist(),
    )


def nests() -> None:
    """Batches of several sizes: in a dictionary, in a nested tuple, and samples of any length."""
    sizes = [3, 8, 5, 3, 8]
    one, other = keras.Input((4,), name="one"), keras.Input((3,), name="other")
    both = keras.layers.Dense(1)(keras.layers.Concatenate()([one, other]))
    length = keras.Input((None, 3))
    pooled = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(length))

    def parts(size):
        return np.ones((size, 4), "f"), np.ones((size, 3), "f")

    kinds = {
        "dictionary": (
            {"one": one, "other": other},
            both,
            lambda size: dict(zip(("one", "other"), parts(size), strict=True)),
        ),
        "nested": ([one, other], both, parts),
        "lengths": (length, pooled, lambda size: np.ones((size, 2 * size, 3), "f")),
    }
    for name, (inputs, outputs, make) in kinds.items():

        class Nested(keras.utils.PyDataset):
            def __len__(self):
                return len(sizes)

            def __getitem__(self, index, make=make):
                return make(sizes[index]), np.ones((sizes[index], 1), "f")

        trained = keras.Model(inputs, outputs)
        trained.compile("sgd", "mse")
        recording = fit(trained, f"nests/{name}", x=Nested(), shuffle=False)
        report(
            f"nests/{name}",
            **summary(recording),
            samples=recording.facts["throughput"]["samples"],
            problems=[str(problem) for problem in recording.problems],
        )


def epochs() -> None:
    """Three epochs with validation, and a fit after it."""
    truth = Truth([3.0] * 10)
    trained = model()
    validated = Truth([7.0] * 6)
    arguments = {"epochs": 3, "validation_data": Made(validated)}
    first = fit(trained, "epochs", **arguments, **given("PyDataset", truth))
    validation = first.validation_steps["input_wait_ns"] / 1e6
    phases = first.phases
    report(
        "epochs",
        **summary(first),
        validation_ms=validation.tolist(),
        validation_off_ms=(validation[:6] - validated.wait_ms(ahead=False)).tolist(),
        validations=int((phases["kind"] == "validation").sum()),
        epochs=int((phases["kind"] == "epoch").sum()),
    )
    second = fit(trained, "epochs", **given("PyDataset", truth))
    fit(trained, "epochs", ours=False, **given("PyDataset", truth))
    report(
        "second",
        **summary(second),
        compile_ms=float(second.steps["compile_ns"].sum() / 1e6),
        left=[getattr(getattr(trained, name), "__module__", "") for name in ("train_function", "test_function")],
    )


def behind() -> None:
    """Steps that the device is still at when a validation, of one batch, begins."""
    layers = [keras.layers.Dense(700) for _ in range(4)]
    trained = keras.Sequential([keras.Input((700,)), *layers])
    trained.compile("sgd", "mse")
    x = np.ones((20 * 64, 700), np.float32)
    arguments = {"x": x, "y": x, "batch_size": 64, "shuffle": False}
    trained.fit(verbose=0, validation_data=(x[:64], x[:64]), **arguments)
    recording = fit(trained, "behind", epochs=2, validation_data=(x[:64], x[:64]), **arguments)
    phases = recording.phases
    validations = phases["kind"] == "validation"
    report(
        "behind",
        **summary(recording),
        validations_s=float((phases["end_ns"] - phases["start_ns"])[validations].sum() / 1e9),
        behind=int((phases["name"] == "steps of the epoch").sum()),
    )


def interrupted() -> None:
    """Ctrl-C in the middle, and a fit after it without us."""
    trained = model()
    try:
        fit(trained, "interrupted", callbacks=[Stopped()], **given("PyDataset", Truth([1.0] * 10)))
    except KeyboardInterrupt:
        pass
    fit(trained, "", ours=False, **given("PyDataset", Truth([1.0] * 4)))
    until = time.monotonic() + 20  # the recorder's thread notices by and by
    while (recording := read_recordings(FOLDER / "interrupted")[0]).status == "live" and time.monotonic() < until:
        time.sleep(0.1)
    report("interrupted", **summary(recording))


def remade() -> None:
    """Another callback makes the train function anew in mid-fit."""

    class Remake(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.make_train_function(force=True)

    data = given("PyDataset", Truth([2.0] * 8))
    recording = fit(model(), "remade", callbacks=[Remake()], epochs=3, **data)
    # What is fetched while the new function still loads does not delay the device: no wait.
    report("remade", **summary(recording), get_ms=(recording.steps["input_get_ns"] / 1e6).tolist())


def on_batch() -> None:
    """A callback that trains on a batch of its own, inside the fit."""

    class Extra(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            x, y = Truth([0.0]).make(0)
            self.model.train_on_batch(x, y)

    data = given("PyDataset", Truth([2.0] * 8))
    recording = fit(model(), "on_batch", callbacks=[Extra()], epochs=2, **data)
    report("on_batch", **summary(recording))


def used_up() -> None:
    """A generator that ends with the first epoch, and one for validation."""
    made = lambda count: (Truth([0.0]).make(0) for _ in range(count))  # noqa: E731
    for name, data in (
        ("training", {"x": made(40)}),
        ("validation", {"x": given("PyDataset", Truth([0.0] * 8))["x"], "validation_data": made(20)}),
    ):
        recording = fit(model(), "used_up", epochs=4, **data)
        report(f"used_up/{name}", verdict=diagnose(recording)["verdict"], **summary(recording))


def synchronizations() -> None:
    """How often arrays are read or waited for, and on which thread, with and without us."""
    x, y = np.ones((320, WIDTH), "f"), np.ones((320, 1), "f")
    found = []
    trained = model()
    for ours in (False, True, False, True):  # the first two compile
        with counted_reads() as counts:
            fit(trained, "synchronizations", ours=ours, x=x, y=y, batch_size=8, epochs=2)
            found.append(dict(counts))
    report("synchronizations", without=found[2], with_callback=found[3])


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        globals()[chosen]()
