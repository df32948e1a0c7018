"""Small programs as people write them: trained, judged, mended as printed, and trained again.

    python tests/scenarios/trials.py [NAME ...]      # prints a table of all, or of some of them

Eleven are the variants of TensorFlow's guide "Better performance with the tf.data API" with its own
times (opening a file 30 ms, reading 15 ms, mapping 30 ms, a step 10 ms); the others are kinds of
programs. A program gets an `Edit`, which makes of its names what the printed code makes of them
(nothing at first), and a folder to record in. Each program runs in a process of its own.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent.parent)]

from advised import Given, apply  # noqa: E402

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, ceilings, read_recordings  # noqa: E402
from gpu_util_callback.diagnosis import run_report  # noqa: E402
from gpu_util_callback.words import times  # noqa: E402

OPEN_S, READ_S, MAP_S, STEP_S = 0.03, 0.015, 0.03, 0.01

TRIALS: dict[str, "Trial"] = {}


class Edit:
    """The printed code, applied where a program says so; without code it changes nothing."""

    INPUTS = ("data", "ds", "dataset", "loader")

    def __init__(self, code: str = ""):
        self.code = code

    def __call__(self, whole: Any, source: Any = None, then: Callable = lambda data: data, **names: Any) -> Any:
        """The input that the code leaves.

        Args:
            whole: the input as the program has it.
            source: what comes before the stage that such code writes in another way.
            then: what comes behind it.
            names: the program's other names; those of inputs stand for what they say.
        """
        if not self.code:
            return whole
        staged = source is not None and re.search(r"\.(map|interleave|batch)\(", self.code)
        given = dict.fromkeys(self.INPUTS, source if staged else whole) | names
        after = apply(self.code, **given)
        changed = [after[name] for name in self.INPUTS if after[name] is not given[name]]
        after_all = changed[0] if changed else given["data"]
        return then(after_all) if staged else after_all


class Trial:
    """A program, the backend it runs on, and what it is a trial of."""

    def __init__(self, program: Callable, backend: str, about: str):
        self.program, self.backend, self.about = program, backend, about


def trial(backend: str, about: str) -> Callable[[Callable], Callable]:
    """Enter a program under its function's name."""

    def enter(program: Callable) -> Callable:
        TRIALS[program.__name__] = Trial(program, backend, about)
        return program

    return enter


# ---- what programs are made of -----------------------------------------------------------------


CEILINGS_S = 3.0
_measured: list[dict] | None = None  # ceilings, in a process that measures them


def measured(*args: Any, **kwargs: Any) -> bool:
    """Whether this process measures a program's ceilings instead of training."""
    if _measured is not None:
        found = ceilings(*args, seconds=CEILINGS_S, progress=False, **kwargs)
        _measured.append(found.to_dict())
    return _measured is not None


def loop(folder: Path, data: Any, backend: str, epochs: int = 2, step: Any = None) -> None:
    """A loop of somebody's own, as the guide's `benchmark` is one."""
    step = step or (lambda _: time.sleep(STEP_S))
    if measured(step=step, data=data):
        return
    with GpuUtilMonitor(folder, framework=backend, trace="off", report=False) as monitor:
        for _ in range(epochs):
            for batch in monitor.batches(data):
                step(batch)


def fit(folder: Path, data: Any, callbacks: Any = (), step_s: float = STEP_S, **kwargs: Any) -> Any:
    """A fit of a model whose step takes `step_s`."""
    model = kwargs.pop("model", None) or slow_model(step_s)
    given = {name: kwargs[name] for name in ("y", "batch_size") if name in kwargs}
    if measured(model, data, **given):
        return model
    ours = GpuUtilCallback(folder, trace="off", report=False)
    model.fit(data, verbose=0, callbacks=[*callbacks, ours], **kwargs)
    return model


def slow_model(step_s: float, width: int = 8) -> Any:
    """A model whose step takes `step_s`, without the CPU, on any backend."""
    import keras

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

    layers = [keras.Input((width,), batch_size=4), Works(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    return model


def arrays(index: int = 0) -> tuple[Any, Any]:
    """One batch."""
    import numpy as np

    return np.full((4, 8), index % 7, "float32"), np.ones((4, 1), "float32")


def make_batch(index: int, seconds: float = 0.04) -> tuple[Any, Any]:
    """One batch that waits for a disk."""
    time.sleep(seconds)
    return arrays(index)


def augment_batch(index: int) -> tuple[Any, Any]:
    """One batch of random numbers that plain Python computes for some 25 ms, under its lock."""
    total = 0
    for number in range(500_000):
        total += number ^ index
    return arrays(total)


# ---- TensorFlow's guide ------------------------------------------------------------------------


SAMPLES = 100


def read_samples(part: int = 0, parts: int = 1, samples: int = SAMPLES) -> Any:
    """What the guide's `ArtificialDataset` does; or every so many of its samples."""
    time.sleep(OPEN_S)
    for index in range(part, samples, parts):
        time.sleep(READ_S)
        yield (index,)


def artificial(samples: int = SAMPLES) -> Any:
    """The guide's `ArtificialDataset`."""
    import tensorflow as tf

    spec = tf.TensorSpec((1,), tf.int64)
    read = lambda: read_samples(samples=samples)  # noqa: E731
    return tf.data.Dataset.from_generator(read, output_signature=spec)


def splitting(edit: Edit, read: Callable, spec: Any) -> dict[str, Any]:
    """Names for code that splits a generator: `read` takes a part's number, and how many."""
    import tensorflow as tf

    parts = int((re.search(r"\.range\((\d+)\)", edit.code) or [0, 1])[1])

    class Dataset:
        range = tf.data.Dataset.range

        @staticmethod
        def from_generator(generator: Callable, _: Any, args: Any) -> Any:
            return tf.data.Dataset.from_generator(generator, args=args, output_signature=spec)

    if "from_generator" not in edit.code:
        return {"tf": tf}
    proxy = SimpleNamespace(data=SimpleNamespace(Dataset=Dataset, Options=tf.data.Options))
    return {"tf": proxy, "your_generator": lambda k: read(k, parts)}


def mapped_function(value: Any) -> Any:
    """The guide's: 30 ms in a py_function."""
    import tensorflow as tf

    tf.py_function(lambda: time.sleep(MAP_S), [], ())
    return value


def guide(edit: Edit, folder: Path, whole: Any, source: Any = None, **names: Any) -> None:
    """`benchmark(whole)`, or of what the advice makes of it."""
    import tensorflow as tf

    spec = tf.TensorSpec((1,), tf.int64)
    names = splitting(edit, read_samples, spec) | {"mapped_function": mapped_function} | names
    loop(folder, edit(whole, source, **names), "tensorflow")


@trial("tensorflow", "guide: naive")
def naive(edit: Edit, folder: Path) -> None:
    guide(edit, folder, artificial())


@trial("tensorflow", "guide: prefetched")
def prefetched(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    guide(edit, folder, artificial().prefetch(tf.data.AUTOTUNE))


@trial("tensorflow", "guide: sequential interleave")
def sequential_interleave(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def open_file(_: Any) -> Any:
        return artificial(SAMPLES // 4)

    files = tf.data.Dataset.range(4)
    guide(edit, folder, files.interleave(open_file), files=files, open_file=open_file)


@trial("tensorflow", "guide: parallel interleave")
def parallel_interleave(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def open_file(_: Any) -> Any:
        return artificial(SAMPLES // 4)

    files = tf.data.Dataset.range(4)
    whole = files.interleave(open_file, num_parallel_calls=tf.data.AUTOTUNE)
    guide(edit, folder, whole, files=files, open_file=open_file)


@trial("tensorflow", "guide: sequential map")
def sequential_map(edit: Edit, folder: Path) -> None:
    source = artificial()
    guide(edit, folder, source.map(mapped_function), source)


@trial("tensorflow", "guide: parallel map")
def parallel_map(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    source = artificial()
    guide(edit, folder, source.map(mapped_function, num_parallel_calls=tf.data.AUTOTUNE), source)


@trial("tensorflow", "guide: cached")
def cached(edit: Edit, folder: Path) -> None:
    source, then = artificial(), lambda data: data.cache()
    guide(edit, folder, source.map(mapped_function).cache(), source, then=then)


def increment(x: Any) -> Any:
    return x + 1


@trial("tensorflow", "guide: scalar map")
def scalar_map(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    source = tf.data.Dataset.range(600_000)
    whole = source.map(increment).batch(4096)
    guide(edit, folder, whole, source, increment=increment, batch_size=4096)


@trial("tensorflow", "guide: vectorised map")
def vectorised_map(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    source = tf.data.Dataset.range(600_000).batch(4096)
    guide(edit, folder, source.map(increment), source, increment=increment, batch_size=4096)


def memory_consuming(value: Any) -> Any:
    """The guide's: what comes out takes a hundred times the memory."""
    import tensorflow as tf

    tf.py_function(lambda: time.sleep(MAP_S / 2), [], ())
    return tf.repeat(value, 100)


@trial("tensorflow", "guide: reduced memory order")
def reduced_memory(edit: Edit, folder: Path) -> None:

    source = artificial()
    cached = source.map(mapped_function).cache()
    whole, then = cached.map(memory_consuming), lambda data: data.cache().map(memory_consuming)
    if "map(memory_consuming" in edit.code:
        source, then = cached, lambda data: data
    guide(edit, folder, whole, source, then=then, memory_consuming=memory_consuming)


@trial("tensorflow", "guide: all of it")
def all_of_it(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def open_file(_: Any) -> Any:
        return artificial(SAMPLES // 4)

    tune = tf.data.AUTOTUNE
    files = tf.data.Dataset.range(8)
    whole = files.interleave(open_file, cycle_length=8, num_parallel_calls=8)
    whole = whole.map(increment, num_parallel_calls=tune).cache().prefetch(tune)
    guide(edit, folder, whole, files=files, open_file=open_file)


# ---- kinds of programs -------------------------------------------------------------------------


def dataset_of(make: Callable, count: int, **settings: Any) -> Any:
    """A PyDataset of these batches."""
    import keras

    class Images(keras.utils.PyDataset):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return make(index)

    return Images(**settings)


def kinds(edit: Edit, make: Callable, count: int, whole: Any) -> Any:
    """An input of a fit, as the code for a PyDataset or a generator leaves it."""
    import keras

    return edit(whole, keras=keras, make_batch=make, number_of_batches=count)


@trial("tensorflow", "PyDataset without workers, waits")
def pydataset_waits(edit: Edit, folder: Path) -> None:
    fit(folder, kinds(edit, make_batch, 80, dataset_of(make_batch, 80)), epochs=2)


@trial("tensorflow", "PyDataset without workers, computes")
def pydataset_computes(edit: Edit, folder: Path) -> None:
    fit(folder, kinds(edit, augment_batch, 100, dataset_of(augment_batch, 100)), epochs=2)


@trial("tensorflow", "PyDataset with 4 threads, Python's lock")
def pydataset_threads(edit: Edit, folder: Path) -> None:
    data = dataset_of(augment_batch, 100, workers=4)
    fit(folder, kinds(edit, augment_batch, 100, data), epochs=2)


@trial("jax", "PyDataset without workers on JAX")
def pydataset_jax(edit: Edit, folder: Path) -> None:
    fit(folder, kinds(edit, make_batch, 80, dataset_of(make_batch, 80)), epochs=2)


def generated(count: int = 160, make: Callable = make_batch) -> Any:
    for index in range(count):
        yield make(index)


@trial("tensorflow", "Python generator in fit")
def generator_fit(edit: Edit, folder: Path) -> None:
    fit(folder, kinds(edit, make_batch, 160, generated()), steps_per_epoch=160)


@trial("tensorflow", "from_generator slower than the step, prefetched")
def slow_from_generator(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def read(part: int = 0, parts: int = 1) -> Any:
        for index in range(part, 200, parts):
            time.sleep(0.016)
            yield arrays(index)

    spec = (tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1)))
    whole = tf.data.Dataset.from_generator(read, output_signature=spec).prefetch(2)
    loop(folder, edit(whole, **splitting(edit, read, spec)), "tensorflow")


@trial("jax", "generator in a loop on JAX, faster than the step")
def generator_jax(edit: Edit, folder: Path) -> None:
    def batches() -> Any:
        return generated(100, lambda index: make_batch(index, 0.02))

    data = edit(batches(), generated=lambda *_: batches())
    step = lambda _: time.sleep(0.03)  # noqa: E731
    loop(folder, data, "jax", epochs=1, step=step)


@trial("jax", "generator in a loop on JAX, slower than the step")
def slow_generator_jax(edit: Edit, folder: Path) -> None:
    def batches() -> Any:
        return generated(100, lambda index: make_batch(index, 0.04))

    names = {"generated": lambda *_: batches(), "make_batch": make_batch}
    data = edit(batches(), number_of_batches=100, **names)
    loop(folder, data, "jax", epochs=1)


@trial("jax", "tf.data in a loop on JAX")
def tf_data_jax(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def load(index: Any) -> Any:
        return tf.numpy_function(lambda i: make_batch(int(i))[0], [index], tf.float32)

    source = tf.data.Dataset.range(100)
    data = edit(source.map(load), source, tf=tf, load=load)
    loop(folder, data, "jax")


@trial("tensorflow", "py_function that computes")
def py_function(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    def load(index: Any) -> Any:
        x = tf.numpy_function(lambda i: augment_batch(int(i))[0], [index], tf.float32)
        x = tf.ensure_shape(x, (4, 8))
        return x, x[:, :1]

    def in_tensorflow(index: Any) -> Any:  # what the advice asks of the user
        x = tf.cast(tf.fill((4, 8), index % 7), tf.float32)
        return x, x[:, :1]

    source = tf.data.Dataset.range(150)
    fit(folder, edit(source.map(load), source, tf=tf, load_tf=in_tensorflow))


def loader_of(make: Callable, workers: int, count: int = 100) -> tuple[Any, Given]:
    """A DataLoader of 4 samples a batch, and the call that makes it."""
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4 * count

        def __getitem__(self, index: int) -> Any:
            x, y = make(index)
            return x[0], y[0]

    dataset = Samples()
    given = Given(torch.utils.data.DataLoader, dataset, batch_size=4, num_workers=workers)
    return given(...), given


def through_loader(edit: Edit, folder: Path, make: Callable, workers: int, train: Callable) -> None:
    import torch

    loader, given = loader_of(make, workers)
    names = {"DataLoader": given, "torch": torch, "dataset": loader.dataset}
    if "torch.utils.data.DataLoader" in edit.code:
        utils = SimpleNamespace(data=SimpleNamespace(DataLoader=given))
        names["torch"] = SimpleNamespace(utils=utils)
    data = edit(loader, **names)
    if "DataLoader(" not in edit.code and edit.code:  # the samples, made once
        given.arguments = (data,)
        data = given(...)
    train(data)


def quick_sample(index: int) -> tuple[Any, Any]:
    return make_batch(index, 0.01)


def computed_sample(index: int) -> tuple[Any, Any]:
    total = 0
    for number in range(120_000):
        total += number ^ index
    return arrays(total)


@trial("torch", "DataLoader without workers, a loop")
def loader_0(edit: Edit, folder: Path) -> None:
    through_loader(edit, folder, quick_sample, 0, lambda data: loop(folder, data, "torch"))


@trial("torch", "DataLoader without workers, computes, a fit")
def loader_0_fit(edit: Edit, folder: Path) -> None:
    through_loader(edit, folder, computed_sample, 0, lambda data: fit(folder, data, epochs=2))


@trial("torch", "DataLoader with 2 workers, waits, a loop")
def loader_2(edit: Edit, folder: Path) -> None:
    through_loader(edit, folder, quick_sample, 2, lambda data: loop(folder, data, "torch"))


@trial("torch", "DataLoader with 4 workers, healthy")
def loader_4(edit: Edit, folder: Path) -> None:
    train = lambda data: loop(  # noqa: E731
        folder, data, "torch", step=lambda _: time.sleep(0.03)
    )
    through_loader(edit, folder, lambda index: make_batch(index, 0.002), 4, train)


def quick_data(count: int = 60) -> Any:
    """A dataset that no step waits for."""
    import tensorflow as tf

    one = (tf.ones((4, 8)), tf.ones((4, 1)))
    return tf.data.Dataset.from_tensors(one).repeat(count)


def fit_as_told(edit: Edit, folder: Path, data: Any, **kwargs: Any) -> None:
    """A fit that `model.fit(..., ...)` may be called for in another way."""
    import tensorflow as tf

    own = dict(kwargs)
    if "from_tensor_slices" in edit.code:  # the dataset holds them
        own = {name: own[name] for name in own if name not in ("y", "batch_size")}
    given = Given(lambda data, **settings: fit(folder, data, **settings), data, **own)
    if "model.fit(" not in edit.code:
        given(...)
        return
    names = dict.fromkeys((*edit.INPUTS, "x"), data) | {"tf": tf, "y": kwargs.get("y")}
    apply(edit.code, model=SimpleNamespace(fit=given), **names)


@trial("tensorflow", "validation heavy")
def validates(edit: Edit, folder: Path) -> None:
    model = slow_model(STEP_S)
    step = model.test_step

    def slow_test(inputs: Any) -> Any:
        from timed_fit import pause

        x, y = inputs
        return step((pause(x, 10), y))

    model.test_step = slow_test
    fit_as_told(edit, folder, quick_data(), model=model, epochs=8, validation_data=quick_data(60))


class Watching:
    """Prints something after every batch; made a callback below."""

    def __init__(self, print_every: int = 1):
        super().__init__()
        self.print_every = print_every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % self.print_every == 0:
            time.sleep(0.02)


@trial("tensorflow", "callback heavy, with print_every")
def prints_every(edit: Edit, folder: Path) -> None:
    import keras

    Watcher = type("Watcher", (Watching, keras.callbacks.Callback), {})
    watcher = Watcher()
    if edit.code:
        made = Given(Watcher)
        apply(edit.code, Watcher=made)
        watcher = made.result
    fit(folder, quick_data(120), [watcher], epochs=2)


@trial("tensorflow", "callback heavy, at the ends of epochs")
def plots(edit: Edit, folder: Path) -> None:
    import keras

    class Plots(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            time.sleep(0.4 + 0 * epoch)

    def work(names: Any) -> None:
        time.sleep(0.4 + 0 * names["epoch"])

    kept = Plots
    if edit.code:
        kept = applied_hooks(edit.code, keras.callbacks.Callback, work)
    fit(folder, quick_data(40), [kept()], epochs=8)


def applied_hooks(code: str, base: type, work: Callable) -> type:
    """A callback of the hooks that printed code defines, `...` being the work moved into them."""
    code = code.replace("...", "_work(locals())")
    names = apply(code, _work=work)
    hooks = {name: hook for name, hook in names.items() if name.startswith("on_")}
    return type("Plots", (base,), hooks)


@trial("tensorflow", "checkpoint heavy")
def saves(edit: Edit, folder: Path) -> None:
    import keras

    model = slow_model(STEP_S)
    model.save = model.save_weights = lambda *_, **__: time.sleep(0.5)
    kinds = {"filepath": str(folder / "model.keras"), "save_freq": "epoch"}
    given = Given(keras.callbacks.ModelCheckpoint, **kinds)
    callbacks = [given(...)]
    if "model.save(" in edit.code:
        fit(folder, quick_data(40), model=model, epochs=8)
        apply(edit.code, model=model)
        return
    if edit.code:
        callbacks_of = SimpleNamespace(ModelCheckpoint=given)
        apply(edit.code, keras=SimpleNamespace(callbacks=callbacks_of))
        callbacks = [given.result]
    fit(folder, quick_data(40), callbacks, model=model, epochs=8)


@trial("tensorflow", "tiny model on arrays")
def tiny(edit: Edit, folder: Path) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(40_000, 16)).astype("float32")
    fit_as_told(edit, folder, x, model=model, y=x[:, :1], batch_size=32, epochs=4)


@trial("tensorflow", "images from disk")
def images(edit: Edit, folder: Path) -> None:
    import keras
    import tensorflow as tf

    place = folder.parent / "images"
    place.mkdir(exist_ok=True)
    for number in range(8):
        pixels = tf.random.stateless_uniform((384, 384, 3), (number, 0), 0, 255, tf.int32)
        tf.io.write_file(str(place / f"{number}.jpg"), tf.io.encode_jpeg(tf.cast(pixels, tf.uint8)))

    def decode(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.resize(image, (64, 64)) / 255.0
        return image, tf.reduce_mean(image)

    layers = [keras.Input((64, 64, 3)), keras.layers.Conv2D(4, 3, strides=4)]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    paths = [str(place / f"{number}.jpg") for number in range(8)] * 300
    source = tf.data.Dataset.from_tensor_slices(paths)
    whole = source.map(decode).batch(16)
    data = edit(whole, source, lambda data: data.batch(16), tf=tf, decode=decode)
    fit(folder, data, model=model, epochs=2)


@trial("tensorflow", "inputs of varying shape")
def shapes(edit: Edit, folder: Path) -> None:
    import keras
    import tensorflow as tf

    def some(length: Any) -> Any:
        return tf.data.Dataset.from_tensors((tf.ones([length], tf.int32), 1.0)).repeat(32)

    lengths = [32 + 24 * (i % 20) for i in range(60)]
    source = tf.data.Dataset.from_tensor_slices(lengths).flat_map(some)
    whole = source.padded_batch(32, drop_remainder=True)
    layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(100, 16)]
    layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=True)
    fit(folder, edit(whole, tf=tf), model=model, epochs=4)


@trial("tensorflow", "healthy")
def healthy(edit: Edit, folder: Path) -> None:
    import tensorflow as tf

    fit(folder, quick_data(250).prefetch(tf.data.AUTOTUNE), epochs=2)


# ---- trying --------------------------------------------------------------------------------------


def _once(name: str, code: str, folder: Path) -> dict:
    """Run a program with the code applied, in this process; what the report says of it."""
    folder.mkdir(parents=True)
    TRIALS[name].program(Edit(code), folder / "run")
    [recording] = read_recordings(folder / "run")
    return run_report(recording)


def _ceilings(name: str, folder: Path) -> dict | None:
    """The ceilings of a program as it is written; None where its data serve only once."""
    global _measured
    _measured = []
    folder.mkdir(parents=True)
    try:
        TRIALS[name].program(Edit(), folder / "run")
    except ValueError as error:
        if "iterated over only once" not in str(error):
            raise
    return next(iter(_measured), None)


def _apart(what: str, name: str, *code: str) -> Any:
    """The same in a process of its own."""
    paths = [HERE, HERE.parent / "support", HERE.parent.parent, os.environ.get("PYTHONPATH", "")]
    more = {
        "KERAS_BACKEND": TRIALS[name].backend,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "trials.py"), what, name, *code, folder],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode:
        raise RuntimeError(f"{what} {name} failed:\n{code}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def per_step(run: dict, compiling: bool) -> float:
    """Seconds a step of a run, without compiling, which each process does, if that is not meant."""
    return (run["wall_s"] - (0 if compiling else run["time_s"]["compile"])) / run["steps"]


def tried(name: str) -> dict:
    """A program before and after its first advice: verdict, advice, promise and gain.

    Returns: `verdict`, `text`, `code`, `promised` and `got` (None without an advice), both runs,
    and `bound`: the gain of a perfect input by the program's ceilings, None where that is not what
    the advice is about, or where its data serve only once.
    """
    before = _apart("--once", name, "")
    findings = [*before["spans"], *before["findings"]]
    found = max(findings, key=lambda one: one["lost_s"] or 0, default=None)
    seen = {
        "verdict": before["verdict"],
        "before": before,
        "text": "",
        "code": "",
        "promised": None,
        "got": None,
        "bound": None,
        "after": None,
    }
    if found is None or not found["advice"]["code"]:
        return seen | ({} if found is None else {"text": found["advice"]["text"]})
    code = found["advice"]["code"]
    alike = [one for one in findings if one["advice"]["code"] == code]
    saves = sum(one["saves_s"] or 0 for one in alike)
    after = _apart("--once", name, code)
    ceiling = _apart("--ceilings", name) if found["cause"] == "input_bound" else None
    meant = found["cause"] == "recompilation"
    was, now = (per_step(run, meant) for run in (before, after))
    return seen | {
        "text": found["advice"]["text"],
        "code": code,
        "after": after,
        "promised": was / (was - saves / before["steps"]),
        "got": was / now,
        "bound": ceiling and ceiling["input_gain"],
        "steps": after["steps"] / before["steps"],
    }


def _table(names: list[str]) -> None:
    print("| program | verdict | advice | promised up to | by ceilings at most | got |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        try:
            seen = tried(name)
        except Exception as error:
            print(f"| {TRIALS[name].about} | {error} | | | | |".replace("\n", "⏎"), flush=True)
            continue
        shown = [times(seen[key]) if seen[key] else "-" for key in ("promised", "bound", "got")]
        advice = f"`{seen['code']}`".replace("\n", "⏎") if seen["code"] else seen["text"] or "-"
        if seen["got"] and seen["steps"] != 1:
            shown[2] += f" a step, with {seen['steps']:.0%} of the steps"
        cells = [TRIALS[name].about, seen["verdict"], advice, *shown]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        _, _, which, printed, where = sys.argv
        print(json.dumps(_once(which, printed, Path(where) / "trial")))
    elif sys.argv[1:2] == ["--ceilings"]:
        print(json.dumps(_ceilings(sys.argv[2], Path(sys.argv[3]) / "trial")))
    else:
        _table(sys.argv[1:] or list(TRIALS))
