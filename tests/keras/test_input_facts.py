"""What a recording says of the input that a fit or a loop was given."""

from __future__ import annotations

import functools
import itertools
import os
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.backends.input_watch import TfDataPipelines
from gpu_util_callback.backends.inputs import describe_fit, describe_input, describe_validation
from gpu_util_callback.backends.tensorflow.written_stages import Reader
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.steps.frames import calling_fit
from gpu_util_callback.steps.rows import seen_dims, shape_signature

BATCH = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)


class Made(keras.utils.PyDataset):
    asked = 0

    def __len__(self):
        self.asked += 1
        return 2

    def __getitem__(self, index):
        return BATCH


def make_batches():
    while True:
        yield BATCH


class Describe(keras.callbacks.Callback):
    facts: dict | None = None

    def on_train_begin(self, logs=None):
        source = calling_fit().f_locals.get("x")
        asked = getattr(source, "asked", 0)
        self.facts = {backend: describe_fit(calling_fit(), backend) for backend in ("tensorflow", "jax")}
        assert getattr(source, "asked", 0) == asked, "the user's code was run"


@functools.cache
def regression() -> keras.Model:
    """One model for all tests, since none is about it: its functions are traced once."""
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def described(**given) -> dict:
    """The facts of a real fit, as its backend's and as if it were JAX."""
    callback = Describe()
    regression().fit(**given, steps_per_epoch=2, verbose=0, callbacks=[callback])
    return callback.facts


def test_arrays():
    x, y = np.ones((16, 4), np.float32), np.ones((16, 1), np.float32)
    found = described(x=x, y=y, batch_size=8)
    facts = {"input_kind": "numpy", "batch_size": 8, "input_batches": 2, "input_beside": ["y"]}
    assert found["tensorflow"] == found["jax"] == facts
    split = described(x=x, y=y, sample_weight=y[:, 0], validation_split=0.25)["tensorflow"]
    assert (split["input_beside"], split["validation_split"]) == (["y", "sample_weight"], 0.25)
    assert split["validation_batch_size"] == 32, "Keras' own"
    beside = described(x=x, y=y, validation_data=(x, y), validation_batch_size=4)["tensorflow"]
    assert (beside["validation_kind"], beside["validation_batch_size"]) == ("numpy", 4)


def test_tf_data():
    dataset = tf.data.Dataset.from_tensors(BATCH).repeat()
    assert described(x=dataset)["jax"] == {
        "input_kind": "tf.data",
        "batch_size": 8,
        "input_autotune": True,
        "input_one_iterator": True,
        "input_dims": [[8, 4], [8, 1]],
    }
    assert describe_input(dataset)["input_kind"] == "tf.data"
    known = described(x=dataset.take(5))["jax"]
    assert known["input_batches"] == 5, "of a pass, whatever an epoch takes"
    assert "input_one_iterator" not in known


def test_a_generator_is_named_and_works_ahead_only_under_tf_data():
    found = described(x=make_batches())
    assert found["jax"]["input_kind"] == found["tensorflow"]["input_kind"] == "generator"
    assert found["jax"]["input_class"] == "make_batches"
    assert found["jax"]["input_workers"] == 0
    assert found["tensorflow"]["input_workers"] == 1
    assert found["tensorflow"]["input_processes"] is False
    assert describe_input(BATCH for _ in range(3))["input_class"] is None, "it has no name"


@pytest.mark.parametrize(
    ("given", "workers", "processes"),
    [
        ({}, 0, None),
        ({"workers": 1}, 0, None),
        ({"workers": 3}, 3, False),
        ({"workers": 1, "use_multiprocessing": True}, 1, True),
    ],
)
def test_the_workers_of_a_pydataset(given, workers, processes):
    data = Made(**given)
    found = described(x=data)["jax"]
    assert found["input_kind"] == "PyDataset" and found["input_class"] == "Made"
    assert found["input_workers"] == workers
    assert found["input_processes"] is processes
    # Whether Keras starts any is Keras' to know.
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    assert (PyDatasetAdapter(data).enqueuer is not None) == (workers > 0)
    # A loop of one's own calls it itself, whatever it was told.
    assert describe_input(data)["input_workers"] == 0
    assert describe_input(data)["steps_per_epoch"] == 2


def test_what_is_not_known_is_left_out():
    assert describe_fit(None, "jax") == {"input_kind": None, "batch_size": None}
    assert describe_input([1, 2, 3]) == {"input_kind": "list", "steps_per_epoch": 3, "batch_size": None}


class Bar:
    """As tqdm keeps what it shows."""

    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        return iter(self.iterable)


class Angry(Bar):
    @property
    def loader(self):
        raise RuntimeError("not yet")


class Adapter(Bar):
    """As accelerate keeps the loader that it moves to a device: not a DataLoader, but for `isinstance`."""

    def __init__(self, loader):
        self.base_dataloader = loader

    def __getattr__(self, name):
        return getattr(self.__dict__["base_dataloader"], name)

    def __iter__(self):
        return iter(self.base_dataloader)

    __class__ = property(lambda self: type(self.base_dataloader))


class Copy(Bar):
    """As Lightning's Fabric does."""

    def __init__(self, loader):
        self.__dict__ |= vars(loader)
        self._dataloader = loader

    def __iter__(self):
        return iter(self._dataloader)


class Stages(Bar):
    """As webdataset's WebLoader does: stages in this process follow."""

    def __init__(self, loader):
        self.pipeline = [loader, len]

    def __iter__(self):
        return iter(self.pipeline[0])


@pytest.mark.parametrize(
    "wrap",
    [
        enumerate,
        Bar,
        Angry,
        Adapter,
        Copy,
        Stages,
        lambda loader: enumerate(Adapter(loader)),
        lambda loader: enumerate(Bar(loader)),
        lambda loader: Bar(enumerate(loader)),
        lambda loader: zip(range(9), loader, strict=False),
        lambda loader: map(str, loader),
        lambda loader: itertools.islice(loader, 3),
        lambda loader: itertools.islice(enumerate(Bar(loader)), 3),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_seen_through_what_wraps_it(wrap, workers):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(12))

    class Loader(torch.utils.data.DataLoader):
        """Says what it has, without processes."""

        def __iter__(self):
            one = torch.utils.data.dataloader._SingleProcessDataLoaderIter(
                torch.utils.data.DataLoader(data, batch_size=4)
            )
            one._num_workers = self.num_workers
            return one

    wrapped = wrap(Loader(data, batch_size=4, num_workers=workers))
    found = describe_input(wrapped)
    assert found["input_kind"] == "torch DataLoader"
    assert found["input_class"] == "TensorDataset" and found["input_workers"] == workers
    assert len(list(wrapped)) == 3, "nothing of it was taken"


def stream(home: str, **attributes):
    """Return an iterable dataset that descends from a class of this library."""
    torch = pytest.importorskip("torch")
    base = type(
        "Data", (torch.utils.data.IterableDataset,), {"__module__": home, "__len__": lambda _: 40, "__iter__": iter}
    )
    own = type("Own", (base,), {"__module__": "train"})()
    own.__dict__ |= attributes
    return own


@pytest.mark.parametrize(
    "data, shards",
    [
        ({"home": "datasets.iterable_dataset", "num_shards": 3}, 3),
        ({"home": "webdataset.compat", "pipeline": [SimpleNamespace(urls=["0.tar", "1.tar"]), len]}, 2),
        # As with resampled=True, where each worker draws from all shards.
        ({"home": "webdataset.compat", "pipeline": [type("ResampledShards", (), {"urls": ["0.tar"]})(), len]}, None),
        ({"home": "streaming.base.dataset"}, 40),
        ({"home": "webdataset.another_version"}, None),
        ({"home": "program"}, None),
    ],
)
def test_parts_that_a_library_gives_each_worker(data, shards):
    loader = pytest.importorskip("torch").utils.data.DataLoader(stream(**data), batch_size=None)
    facts = describe_input(loader)
    assert facts["input_shards"] == shards and facts["input_iterable"] is True


def test_the_size_of_a_batch_may_be_the_samplers():
    """Trainers give a loader a sampler of batches, and no size."""
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.BatchSampler(range(12), 4, drop_last=False)
    loader = torch.utils.data.DataLoader(range(12), batch_sampler=sampler)
    assert describe_input(loader)["batch_size"] == describe_input(Adapter(loader))["batch_size"] == 4
    assert describe_input(torch.utils.data.DataLoader(range(12), batch_size=None))["batch_size"] is None


# As TensorFlow Datasets hands over arrays, and flax puts batches on devices.
LIBRARY = """
def arrays(ds):
    for element in ds:
        yield element.numpy()

class Arrays:
    def __init__(self, ds):
        self._ds = ds
    def __iter__(self):
        return arrays(self._ds)

def ahead(iterator):
    held = [next(iterator)]
    for element in iterator:
        held.append(element)
        yield held.pop(0)
    yield from held
"""


@pytest.mark.parametrize(
    "wrap", ["Arrays(ds)", "ahead(iter(Arrays(ds)))", "ahead(map(len, Arrays(ds)))", "enumerate(ds)"]
)
def test_the_stages_of_a_pipeline_are_read_through_what_a_library_puts_around_it(wrap):
    def decode(k):
        return tf.cast(k, tf.float32) * tf.ones(4)

    names = {"ds": tf.data.Dataset.range(60).map(decode)}
    exec(compile(LIBRARY, "/env/lib/site-packages/library/arrays.py", "exec"), names)
    batches = eval(wrap, names)
    assert describe_input(batches)["input_kind"] == "tf.data"
    pipelines = TfDataPipelines([])
    iterator = iter(batches)
    assert next(iterator) is not None
    pipelines.note_iterator("train", iterator)
    assert pipelines.look() == []
    assert "map(decode)" in {row["stage"] for row in pipelines.read()}
    assert len(list(iterator)) == 59
    own = {"ds": names["ds"]}
    exec(LIBRARY, own)  # a generator of the program itself may do more than hand over
    assert describe_input(own["arrays"](own["ds"]))["input_kind"] == "generator"


def test_a_function_that_joins_samples_is_named_where_it_is_the_programs_own():
    torch = pytest.importorskip("torch")

    def pad(samples):
        return samples

    for own, name in {None: "", pad: "pad"}.items():
        loader = torch.utils.data.DataLoader([1, 2, 3], collate_fn=own)
        assert describe_input(loader)["input_collate"] == describe_input(iter(loader))["input_collate"] == name


def test_a_part_of_a_dataset_is_called_by_the_class_of_all_of_it():
    torch = pytest.importorskip("torch")
    parts = torch.utils.data.random_split(torch.utils.data.TensorDataset(torch.arange(12)), [8, 4])
    assert describe_input(torch.utils.data.DataLoader(parts[0]))["input_class"] == "TensorDataset"


def test_of_loaders_side_by_side_the_one_without_workers_is_told():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(12))
    pair = [torch.utils.data.DataLoader(data, num_workers=count) for count in (3, 0)]
    assert describe_input(zip(*map(Bar, pair), strict=True))["input_workers"] == 0


def test_what_wraps_nothing_known_stays_what_it_is():
    assert describe_input(enumerate([1, 2]))["input_kind"] == "enumerate"
    assert describe_input(Bar([1, 2]))["input_kind"] == "Bar"
    assert describe_input(map(str, Bar([1])))["input_kind"] == "map"
    endless = Bar(None)
    endless.iterable = endless
    assert describe_input(endless)["input_kind"] == "Bar"


def test_the_input_of_a_validation_is_named_by_itself():
    x, y = np.ones((16, 4), np.float32), np.ones((16, 1), np.float32)
    found = described(x=x, y=y, batch_size=8, validation_data=Made(workers=2))["jax"]
    assert found["input_kind"] == "numpy"
    assert found["validation_kind"] == "PyDataset"
    assert found["validation_workers"] == 2
    found = described(x=x, y=y, batch_size=8, validation_data=(x, y))["jax"]
    assert found["validation_kind"] == "numpy" and "validation_workers" not in found
    assert describe_validation(None) == {}


@pytest.mark.parametrize(
    ("shapes", "dims"),
    [
        ([(20, 16), (31, 16)], [[[20, 31], 16], [[20, 31]]]),
        ([(8, 40), (8, 500), (8, 70)], [[8, [40, 500]], [8]]),
        ([(8, 4)], [[8, 4], [8]]),
        ([(8, 4), (8, 4, 2)], None),
    ],
)
def test_what_varies_in_the_shapes_of_batches(shapes, dims):
    seen = [shape_signature((np.ones(shape), np.ones(shape[:1]))) for shape in shapes]
    assert seen_dims(seen) == dims


def test_shapes_of_nested_batches_are_no_axes():
    assert seen_dims([shape_signature(({"a": np.ones((2, 3))}, np.ones(2)))]) is None
    assert seen_dims([12.5]) is None and seen_dims([]) is None


# ---- what shows of the input while it trains -----------------------------------------------------


def trained(folder, given, **arguments):
    """The manifest's `fit` of a short recorded fit."""
    callback = GpuUtilCallback(folder, report=False, trace="off")
    regression().fit(given, verbose=0, callbacks=[callback], **arguments)
    [recording] = read_recordings(folder)
    return recording.facts["fit"]


def labelled(function):
    """Rows of `BATCH` through a function, with labels."""

    def label(index):
        return function(tf.fill((4,), tf.cast(index, tf.float32))), tf.zeros((1,))

    label.__name__ = function.__name__
    return tf.data.Dataset.range(16).map(label)


@tf.function
def noise():
    return tf.random.uniform((4,))


@tf.function
def called(x):
    return tf.numpy_function(np.sin, [x], tf.float32)


def nested(x):
    return x + noise()


def constant_seed(x):
    return x + tf.random.stateless_uniform((4,), seed=(1, 2))


def changing_seed(x):
    return x + tf.random.stateless_uniform((4,), seed=tf.cast([x[0], 1], tf.int32))


def own_generator(x):
    return x + GENERATOR.normal((4,))


def keras_layer(x):
    return NOISY(x, training=True)


def python(x):
    return tf.ensure_shape(called(x), (4,))


def plain(x):
    return tf.sqrt(x) + tf.constant([1.0, 2.0, 3.0, 4.0])


GENERATOR = tf.random.Generator.from_seed(1)
NOISY = keras.layers.GaussianNoise(0.1)


@pytest.mark.parametrize(
    ("function", "random", "calls_python"),
    [
        (nested, True, False),
        (constant_seed, False, False),
        (changing_seed, True, False),
        (own_generator, True, False),
        (keras_layer, True, False),
        (python, False, True),
        (plain, False, False),
    ],
)
def test_what_each_map_draws_and_calls(tmp_path, function, random, calls_python):
    facts = trained(tmp_path, labelled(function).batch(8))
    name = f"map({function.__name__})"
    assert facts["input_maps"] == [{"name": name, "which": "train", "random": random, "python": calls_python}]


def test_maps_of_the_validation_and_of_nested_pipelines(tmp_path):
    def opened(index):
        return labelled(nested).take(2)

    given = tf.data.Dataset.range(8).interleave(opened).batch(8)
    facts = trained(tmp_path, given, validation_data=labelled(plain).batch(8))
    assert facts["input_maps"] == [
        {"name": "interleave(opened)", "which": "train", "random": True, "python": False},
        {"name": "map(plain)", "which": "validation", "random": False, "python": False},
    ]
    given = tf.data.Dataset.zip((labelled(plain), labelled(python))).map(lambda a, b: a).batch(8)
    facts = trained(tmp_path / "zip", given)
    assert [(one["name"], one["python"]) for one in facts["input_maps"]] == [
        ("map(plain)", False),
        ("map(python)", True),
        ("map(lambda)", False),
    ]


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (labelled(plain).shuffle(16), 16 * (4 + 1) * 4),
        (labelled(plain).map(lambda x, y: (tf.boolean_mask(x, x > 0), y)).shuffle(16), None),
        (labelled(plain), None),
    ],
)
def test_a_shuffle_buffer_holds_so_many_bytes_at_most(given, held):
    reader = Reader("train")
    reader.look(given)
    assert reader.shuffle_bytes() == held


def doubled(number):
    return 2 * number


@pytest.mark.parametrize(
    ("given", "drop", "a_pass"),
    [
        (lambda ds: ds.repeat().map(doubled).batch(16).prefetch(2).skip(24), ("skip", 24, 16, True), (8, 120)),
        (lambda ds: ds.map(doubled).skip(20).batch(16).repeat(), ("skip", 20, 1, True), (7, 100)),
        (lambda ds: ds.map(doubled).shuffle(9).skip(20).batch(16), ("skip", 20, 1, False), None),
        (lambda ds: ds.map(doubled).shard(4, 1).batch(10), ("shard", 4, 1, True), None),
        (lambda ds: ds.map(doubled).cache().take(20).batch(5).repeat(), ("take", 20, 1, False), (4, 20)),
        (lambda ds: ds.map(doubled).cache().take(120).batch(16), None, None),  # it is full by then
        (lambda ds: ds.map(doubled).cache().skip(20).batch(16), None, None),  # made once
        (lambda ds: ds.skip(20).shard(4, 1).map(doubled).batch(16), None, None),
        (lambda ds: ds.map(doubled).take(20).batch(16), None, None),
        (lambda ds: ds.filter(lambda n: n > 3).batch(16).repeat(), None, None),  # nobody knows how many
        (lambda ds: ds.map(doubled).repeat(16).batch(16), None, (8, 120)),
    ],
)
def test_what_a_pipeline_drops_and_repeats(given, drop, a_pass):
    reader = Reader("validation")
    reader.look(given(tf.data.Dataset.range(120)))
    dropped = [(each["stage"], each["count"], each["samples"], each["exact"]) for each in reader.use["input_drops"]]
    assert dropped == ([drop] if drop else [])
    assert all(each["behind"] == "map(doubled)" for each in reader.use["input_drops"])
    sizes = reader.use.get("validation_set_batches"), reader.use.get("validation_set_samples")
    assert sizes == (a_pass or (None, None))


def test_the_sizes_of_both_pipelines_are_facts(tmp_path):
    rows = tf.data.Dataset.from_tensor_slices(BATCH)
    data, validation = rows.batch(2).repeat(), rows.map(lambda x, y: (x + 1, y)).batch(1).skip(3).repeat()
    facts = trained(tmp_path, data, steps_per_epoch=4, validation_data=validation, validation_steps=8)
    names = ("input_set_batches", "input_set_samples", "validation_set_batches")
    assert tuple(facts[name] for name in names) == (4, 8, 5)
    assert (facts["input_batch_size"], facts["validation_batch_size"]) == (2, 1)
    assert [(drop["which"], drop["stage"]) for drop in facts["input_drops"]] == [("validation", "skip")]


def test_the_size_of_a_batch_is_none_where_stages_make_others_or_samples_differ():
    for given in (lambda ds: ds.batch(1).unbatch(), lambda ds: ds.batch(1).map(lambda n: tf.range(n[0])[None])):
        reader = Reader("validation")
        reader.look(given(tf.data.Dataset.range(120)))
        assert "validation_batch_size" not in reader.use


def test_a_generator_that_is_used_up(tmp_path):
    batches = (BATCH for _ in range(30))
    callback = GpuUtilCallback(tmp_path, report=False, trace="off")
    regression().fit(batches, epochs=3, verbose=0, callbacks=[callback])
    [recording] = read_recordings(tmp_path)
    said = "Epochs 2–3 had 2 of 30 steps: the generator is used up; Keras repeats its first two batches."
    assert diagnose(recording)["verdict"] == said


def test_a_shuffle_of_names_holds_nothing_that_was_made():
    names = tf.data.Dataset.range(3).shuffle(3)
    opened = names.interleave(lambda _: tf.data.Dataset.range(20))
    for given, shuffles in ((opened, False), (opened.shuffle(9), True), (opened.shuffle(9).batch(2), True)):
        reader = Reader("train")
        reader.look(given)
        assert reader.shuffles() is shuffles


def test_that_only_names_are_shuffled_is_a_fact(tmp_path):
    rows = tf.data.Dataset.from_tensor_slices(BATCH).shuffle(16)
    assert trained(tmp_path, rows.map(lambda x, y: (x + 1, y)).batch(8))["input_shuffles"] is False


def test_a_map_whose_results_a_shuffle_takes_in_is_marked_unless_a_cache_keeps_them(tmp_path):
    for cached in (False, True):
        made = labelled(plain).cache() if cached else labelled(plain)
        maps = trained(tmp_path / str(cached), made.shuffle(16).map(lambda x, y: (x + 1, y)).batch(8))["input_maps"]
        assert [entry.get("shuffled", False) for entry in maps] == [not cached, False]


def test_a_pipeline_without_functions_has_no_maps(tmp_path):
    assert trained(tmp_path, tf.data.Dataset.from_tensors(BATCH).repeat(3))["input_maps"] == []


# ---- values of the first arrays ------------------------------------------------------------------

PIXELS = (np.arange(64 * 8 * 8 * 3) % 256).reshape(64, 8, 8, 3)
SCALED = (PIXELS / 255).astype(np.float32)
LABELS = np.arange(64) % 10


@functools.cache
def classifier() -> keras.Model:
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


def first_of(folder, *given):
    callback = GpuUtilCallback(folder, report=False, trace="off")
    classifier().fit(*given, verbose=0, callbacks=[callback])
    return read_recordings(folder)[0].facts["fit"].get("input_first")


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_values_of_the_arrays_that_fit_is_given(tmp_path, dtype):
    pixels = PIXELS.astype(dtype)
    assert first_of(tmp_path / "whole", pixels, LABELS) == [
        {
            "dtype": dtype,
            "type": "numpy",
            "rank": 4,
            "rows": 64,
            "bytes": pixels.nbytes,
            "min": 0,
            "max": 255,
            "sum": pixels.sum(dtype="float64"),
            "integers": True,
        },
        {"dtype": "int64", "type": "numpy", "rank": 1, "rows": 64, "bytes": 512, "min": 0, "max": 9}
        | {"sum": LABELS.sum(), "integers": True},
    ]
    scaled = first_of(tmp_path / "scaled", SCALED, LABELS)[0]
    assert (scaled["min"], scaled["max"], scaled["integers"]) == (0, 1, False)
    broken = SCALED.copy()
    broken[0, 0, 0, 0] = np.nan
    assert "min" not in first_of(tmp_path / "nan", broken, LABELS)[0], "nothing is invented"


def test_arrays_that_are_read_from_disk_as_they_are_used(tmp_path):
    SCALED.tofile(tmp_path / "pixels")
    mapped = np.memmap(tmp_path / "pixels", SCALED.dtype, "r", shape=SCALED.shape)
    for name, given, told in (
        ("mapped", mapped, "memmap"),
        ("view", np.asarray(mapped[1:]), "memmap"),
        ("chosen", mapped[[2, 1]], "numpy"),
        ("copied", np.array(mapped), "numpy"),
    ):
        assert first_of(tmp_path / name, given, LABELS[: len(given)])[0]["type"] == told, name


def test_values_of_the_first_batch_that_python_makes(tmp_path):
    class Rows(Made):
        def __getitem__(self, index):
            return SCALED[8 * index : 8 * index + 8], LABELS[:8]

    def rows():
        for index in range(2):
            yield SCALED[8 * index : 8 * index + 8], LABELS[:8]

    for name, given in (("PyDataset", Rows()), ("generator", rows())):
        x, y = first_of(tmp_path / name, given)
        assert (x["dtype"], x["rank"], x["rows"], x["bytes"]) == ("float32", 4, 8, 8 * 768)
        assert (x["min"], x["max"], x["integers"]) == (0, 1, False)
        assert (y["max"], y["integers"]) == (7, True)


def test_values_that_stay_in_the_graph_are_not_known(tmp_path):
    given = tf.data.Dataset.from_tensor_slices((SCALED, LABELS)).batch(8)
    assert first_of(tmp_path, given) is None


# ---- the CPU of the training itself --------------------------------------------------------------


def test_the_threads_of_a_step_are_known(tmp_path):
    callback = GpuUtilCallback(tmp_path, report=False, trace="off")
    regression().fit(*BATCH, verbose=0, callbacks=[callback])
    [recording] = read_recordings(tmp_path)
    assert recording.facts["fit"]["step_threads"] == len(os.sched_getaffinity(0))


def test_a_pydataset_that_reorders_itself_and_reads_chunks_of_a_file(tmp_path):
    h5py = pytest.importorskip("h5py")

    class Shuffles(Made):
        def __init__(self):
            super().__init__()
            self.file = h5py.File(tmp_path / "x.h5", "w")
            chunks = {"chunks": (4, 4), "compression": "gzip"}
            self.x = self.file.create_dataset("x", data=np.ones((8, 4), np.float32), **chunks)

        def on_epoch_end(self):
            pass

    data = Shuffles()
    found = described(x=data)["jax"]
    assert found["input_reorders"] is True and "input_reorders" not in described(x=Made())["jax"]
    assert found["input_files"] == [{"name": "self.x", "bytes": 128, "chunk_rows": 4, "compression": "gzip"}]
    data.file.close()
    assert "input_files" not in described(x=data)["jax"], "nothing is known of a closed file"


def read_all():
    yield from range(8)


def test_how_an_iterable_dataset_shares_its_items_out_is_read_from_its_code():
    data = pytest.importorskip("torch").utils.data

    class Blind(data.IterableDataset):
        def __iter__(self):
            return read_all()

    class Noise(data.IterableDataset):
        def __iter__(self):
            return (np.random.rand() for _ in range(8))

    class Strided(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return (item for item in read_all() if item % info.num_workers == info.id)

    class Files(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            yield from range(8)[info.id :: info.num_workers]

    found = [describe_input(data.DataLoader(kind(), num_workers=2))["input_sharing"] for kind in (Blind, Strided)]
    assert found == ["none", "strided"]
    others = [
        data.DataLoader(Noise(), num_workers=2),
        data.DataLoader(Files(), num_workers=2),
        data.DataLoader(Blind()),
    ]
    others.append(data.DataLoader(Blind(), num_workers=2, worker_init_fn=print))
    assert [describe_input(loader)["input_sharing"] for loader in others] == [None] * 4
