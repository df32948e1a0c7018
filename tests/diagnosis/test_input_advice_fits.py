"""Advice about inputs fits the run: the facts decide which line is printed."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from advised import apply
from advised_runs import (
    ALL_CORES,
    BATCH,
    COMPUTING,
    DATALOADER,
    DECODE,
    FILTER,
    GPU,
    JAX,
    KERAS_TORCH,
    LOOP,
    PYDATASET,
    PYTHON,
    TF_KERAS,
    TORCH,
    TUNED,
    WAITING,
    check_line,
    found,
    run_of,
    waits,
)
from generated_runs import Generated

from gpu_util_callback.diagnosis.advice import callbacks, host, loaders, tf_data
from gpu_util_callback.diagnosis.advice import input as inputs
from gpu_util_callback.diagnosis.advice.input_wait import brief
from gpu_util_callback.words import what_to_do

# name, run, host, in the code, never in the code
GENERATOR = ("generator", "Generator", 40.0, 1.0, "py_function")
GRAIN = {"framework": JAX, "input_kind": "grain", "input_class": "DataLoader", "input_workers": 0}
PREFETCH = ("prefetch", "Prefetch", 0.1, 1.0, "")
SMALL = {"input_dims": [[32, 28, 28]], "steps_per_epoch": 400}
PLAIN = {"input_maps": [{"name": "map(decode)", "which": "train", "random": False, "python": False}]}
RANDOM = {"input_maps": [{"name": "map(decode)", "which": "train", "random": True, "python": False}]}
MEMORY = {"cpus": 8, "cpus_allowed": 8, "memory_total_bytes": 64 * 2**30}
ONCE_AND_KEPT = {"epochs": 10, "machine": MEMORY, **SMALL, **PLAIN}
NEIGHBOUR = {"process_cpu_pct": 40, "cpu_pct": 96}
TWO_CORES = {"framework": TORCH, "machine": {"cpus": 2}, "gpus": []}
LIBRARY = ("map(lambda)", "ParallelMapV2", 240.0, 8.0, "autotuned,library")
SHUFFLE = ("shuffle", "ShuffleDatasetV3", 0.1, 1.0, "")

ARRAY = {"dtype": "float32", "rank": 4, "rows": 32, "bytes": 600_000, "integers": True, "min": 0.0, "max": 255.0}


def loader(**facts) -> Generated:
    """A run on PyTorch that waits for a DataLoader, by default without workers."""
    return waits(framework=TORCH, **DATALOADER | facts)


def dataset(**facts) -> Generated:
    """A run on JAX that waits for a PyDataset, by default without workers."""
    return waits(framework=JAX, **PYDATASET | facts)


def generator(**facts) -> Generated:
    """A run on JAX that waits for a generator."""
    return waits(framework=JAX, input_kind="generator", **facts)


def call(cpu_ms: float, queued_ms: float = 0.0) -> dict:
    """A Python function of the input, timed: how long a call of 40 ms computes, and has no core."""
    timed = {"name": "decode", "calls": 400, "timed": 25, "wall_ms": 40.0, "cpu_ms": cpu_ms}
    return {"input_calls": [timed | {"queued_ms": queued_ms}]}


INPUTS = [
    ("fixed parallelism", waits(DECODE), None, "num_parallel_calls=tf.data.AUTOTUNE", "prefetch"),
    ("its name is printed", waits(DECODE), COMPUTING, "ds.map(decode, ", "fn"),
    (
        "waiting on more than the cores",
        waits(DECODE, machine={"cpus": 2}),
        WAITING,
        "private_threadpool_size = 12",
        "cache",
    ),
    (
        "waiting on fewer than the cores",
        waits(PYTHON, machine={"cpus": 64}),
        WAITING,
        "ds = ds.map(decode, num_parallel_calls=6)",
        "threadpool",
    ),
    (
        "Python that waits beside a busy neighbour",
        waits(PYTHON, **call(0.1)),
        NEIGHBOUR,
        "ds.map(decode, num_parallel_calls=6)",
        "tf.image",
    ),
    (
        "a PyDataset behind a stage of Keras' own",
        waits(GENERATOR, PREFETCH, **PYDATASET, **call(0.1)),
        WAITING,
        "dataset.workers = 5",
        "from_generator",
    ),
    (
        "Python that waits on many threads",
        waits(("map(decode)", "ParallelMapV2", 240.0, 8.0, "py_function,autotuned,stateful")),
        WAITING,
        "num_parallel_calls=32",
        "without",
    ),
    ("parallel already, ten epochs", waits(TUNED, **ONCE_AND_KEPT), ALL_CORES, "ds = ds.cache()", "AUTOTUNE"),
    (
        "shuffled by the library's function",
        waits(LIBRARY, SHUFFLE, **ONCE_AND_KEPT),
        ALL_CORES,
        ".cache().shuffle(",
        "before shuffle",
    ),
    (
        "shuffled by the library's function, of unknown size",
        waits(LIBRARY, SHUFFLE, epochs=10, machine=MEMORY, **PLAIN, input_dims=[[None, 64, 64, 3]]),
        ALL_CORES,
        ".cache().shuffle(",
        "before shuffle",
    ),
    (
        "shuffled behind it by the program",
        waits(TUNED, SHUFFLE, **ONCE_AND_KEPT),
        ALL_CORES,
        "ds = ds.cache()  # behind map(decode), before shuffle",
        ".shuffle(",
    ),
    (
        "records of several files",
        waits(("TFRecordDataset", "TFRecord", 40.0, 1.0, ""), ("flat_map", "FlatMap", 0.1, 1.0, "")),
        None,
        "tf.data.TFRecordDataset(filenames, num_par",
        "interleave",
    ),
    (
        "files opened by a function",
        waits(("map", "Map", 40.0, 1.0, ""), ("interleave(open_file)", "Interleave", 0.1, 1.0, "sequential")),
        WAITING,
        "files.interleave(open_file, cycle_length=8, num_parallel_calls=8",
        "your_function",
    ),
    ("autotuning off", waits(input_autotune=False, epochs=5), None, "options.autotune.enabled = True", "cache"),
    ("a lambda", waits(("map(lambda)", *PYTHON[1:])), WAITING, "ds.map(your_function, ", "lambda"),
    ("a JAX loop that times its fetches", waits(framework=JAX, input_kind=None, **LOOP), None, "class Pooled", "ds."),
    (
        "a TensorFlow loop that times short fetches",
        waits(input_kind=None, epochs=5, wait_ms=8, **LOOP),
        None,
        "class Ahead",
        "cache",
    ),
    (
        "a torch loop that times its fetches",
        waits(framework=TORCH, input_kind=None, **LOOP),
        None,
        "torch.utils.data.DataLoader(",
        "ds.",
    ),
    ("an imported torch trace", waits(framework=TORCH, input_kind=None), None, "num_workers=", "ds."),
    (
        "loader without workers",
        loader(**LOOP),
        COMPUTING,
        "DataLoader(dataset, ..., num_workers=3, persistent_workers=True, pin_memory=True)",
        "ds.",
    ),
    ("loader without a GPU", loader(gpus=[], **LOOP), WAITING, "num_workers=4", "pin_memory"),
    ("pinned already", loader(input_pin_memory=True), WAITING, "num_workers=4", "pin_memory"),
    (
        "loader with two workers of 8",
        loader(input_workers=2),
        COMPUTING | {"children_cpu_pct": 200},
        "num_workers=5",
        "AUTOTUNE",
    ),
    (
        "workers that fight",
        loader(machine={"cpus": 2}, input_workers=2),
        {"process_cpu_pct": 20, "cpu_pct": 98, "children_cpu_pct": 300},
        "threadpoolctl.threadpool_limits(1)",
        "num_workers",
    ),
    ("loader under Keras on JAX", waits(framework=JAX, **DATALOADER), WAITING, "num_workers=", "ds."),
    ("dataset that waits", dataset(), WAITING, "dataset.workers = 4", "multiprocessing"),
    ("dataset that computes", dataset(gpus=[]), COMPUTING, "dataset.use_multiprocessing = True", "ds."),
    ("dataset that computes beside a GPU", dataset(), COMPUTING, 'get_context("spawn")', "use_multiprocessing"),
    (
        "dataset on threads that compute",
        waits(**PYDATASET | {"input_workers": 4, "input_processes": False}),
        COMPUTING,
        "use_multiprocessing = True",
        "AUTOTUNE",
    ),
    ("Sequence of tf_keras", waits(framework=TF_KERAS, **PYDATASET), COMPUTING, "model.fit(..., workers=", "dataset."),
    (
        "generator on torch",
        waits(framework=KERAS_TORCH, input_kind="generator"),
        COMPUTING,
        "class Batches(keras.utils.PyDataset)",
        "DataLoader",
    ),
    (
        "fast generator in a loop on JAX",
        generator(input_class="read", wait_ms=8, **LOOP),
        None,
        "Ahead(lambda: read(...))",
        "keras",
    ),
    ("slow generator in a loop on JAX", generator(**LOOP), WAITING, "ThreadPoolExecutor(4)", "spawn"),
    (
        "generator that computes in a loop on JAX",
        generator(**LOOP),
        COMPUTING,
        "Pooled(make_batch, number_of_batches)",
        "ThreadPool",
    ),
    (
        "generator behind tf.data, waiting",
        waits(GENERATOR, PREFETCH, **LOOP),
        WAITING,
        "interleave(part, cycle_length=6",
        "Ahead",
    ),
    (
        "tf.data that makes nothing ahead",
        waits(("map(decode)", "Map", 8.0, 1.0, "sequential"), wait_ms=8, **LOOP),
        None,
        "ds.prefetch(",
        "num_parallel",
    ),
    (
        "generator in a loop on torch",
        waits(framework=TORCH, input_kind="generator", **LOOP),
        None,
        "torch.utils.data.DataLoader(",
        "keras",
    ),
    (
        "arrays of images as floats",
        waits(input_kind="numpy", input_first=[ARRAY]),
        None,
        'x.astype("uint8")',
        "1 / 255",
    ),
    (
        "repeated before, and zipped with what ends",
        waits(("repeat", "RepeatDataset", 0.1, 1.0, ""), ("zip", "ZipDataset", 0.1, 1.0, ""), TUNED, **ONCE_AND_KEPT),
        ALL_CORES,
        "ds = ds.cache()",
        "AUTOTUNE",
    ),
    ("tf.data on torch", waits(DECODE, framework=KERAS_TORCH), None, "tf.data.AUTOTUNE", "DataLoader"),
    ("Grain in epochs of nobody knows", waits(**GRAIN), COMPUTING, "worker_count=3)", "mp_"),
    ("grain", waits(framework=JAX, input_kind="grain"), COMPUTING, "mp_prefetch", "tf.data"),
    ("a Grain DataLoader", waits(**GRAIN), COMPUTING, "worker_count=3)", "mp_prefetch"),
    (
        "a Grain DataLoader that waits",
        waits(wait_ms=90, **GRAIN, machine={"cpus": 2}),
        WAITING,
        "worker_count=11)",
        "mp_prefetch",
    ),
    (
        "a MapDataset of Grain",
        waits(**GRAIN | {"input_class": "MapDataset"}),
        COMPUTING,
        "dataset.to_iter_dataset().mp_prefetch(",
        "worker_count",
    ),
]
# name, run, host
NO_LINE = [
    ("fixed parallelism on full cores", waits(DECODE, machine={"cpus": 2}), ALL_CORES),
    ("Python that computes", waits(PYTHON), COMPUTING),
    ("Python that computes by its own time", waits(PYTHON, **call(39)), WAITING),
    ("Python that computes beside a busy neighbour", waits(PYTHON, **call(9, queued_ms=30)), NEIGHBOUR),
    (
        "Python that computes on many threads",
        waits(("map(decode)", "ParallelMapV2", 240.0, 8.0, "py_function,autotuned,stateful")),
        {"process_cpu_pct": 105, "cpu_pct": 20},
    ),
    ("parallel already, one epoch", waits(TUNED), ALL_CORES),
    (
        "too large to keep",
        waits(TUNED, epochs=10, **SMALL, **PLAIN, machine=MEMORY | {"memory_total_bytes": 2**25}),
        ALL_CORES,
    ),
    ("random", waits(TUNED, epochs=10, machine=MEMORY, **SMALL, **RANDOM), ALL_CORES),
    ("shuffled before", waits(SHUFFLE, TUNED, **ONCE_AND_KEPT), ALL_CORES),
    (
        "in memory already",
        waits(("batch", "BatchV2", 40.0, 1.0, ""), PREFETCH, epochs=10, machine=MEMORY, **SMALL),
        COMPUTING,
    ),
    ("one filter, one epoch", waits(FILTER), None),
    ("batching", waits(BATCH), COMPUTING),
    ("stages unknown, one epoch", waits(), None),
    ("loader on full cores", waits(**TWO_CORES, **DATALOADER), {"process_cpu_pct": 180, "cpu_pct": 95}),
    (
        "loader whose step has all threads",
        waits(**TWO_CORES, step_threads=2, **DATALOADER),
        {"process_cpu_pct": 95, "cpu_pct": 50},
    ),
    ("loader with all workers", loader(input_workers=8), ALL_CORES),
    ("dataset that computes on full cores", dataset(gpus=[], machine={"cpus": 2}), COMPUTING),
    ("generator behind tf.data, computing", waits(GENERATOR, PREFETCH, **LOOP), COMPUTING),
    ("arrays of nobody knows what", waits(input_kind="numpy"), None),
    ("images and numbers", waits(input_kind="numpy", input_first=[ARRAY, ARRAY | {"rank": 2}, ARRAY]), None),
    ("repeated before", waits(("repeat", "RepeatDataset", 0.1, 1.0, ""), TUNED, **ONCE_AND_KEPT), ALL_CORES),
    ("arrays from 0 to 1", waits(input_kind="numpy", input_first=[ARRAY | {"max": 1.0, "integers": False}]), None),
    ("arrays of zeros and ones", waits(input_kind="numpy", input_first=[ARRAY | {"max": 1.0}]), None),
    ("arrays of columns", waits(input_kind="numpy", input_first=[ARRAY | {"rank": 2}]), None),
    ("arrays on JAX", waits(framework=JAX, input_kind="numpy"), None),
    ("a Grain DataLoader on full cores", waits(**GRAIN), ALL_CORES),
]
CASES = [pytest.param(*rest, id=name) for name, *rest in INPUTS]


@pytest.mark.parametrize("run, host, there, never", CASES)
def test_the_line_fits_the_run(run, host, there, never):
    check_line(run, "input_bound", host, there, never)


@pytest.mark.parametrize("run, host", [pytest.param(*rest, id=name) for name, *rest in NO_LINE])
def test_no_line_is_printed_and_nothing_promised(run, host):
    check_line(run, "input_bound", host, "", "")


RESIZE = ("map(resize)", "ParallelMapV2", 4.0, 8.0, "autotuned")
WINDOWS = ("window", "WindowDataset", 0.1, 1.0, ""), ("flat_map(lambda)", "FlatMap", 40.0, 1.0, "sequential")
FILES = ("interleave(open_file)", "Interleave", 0.1, 1.0, "sequential")


@pytest.mark.parametrize(
    "run, host, question",
    [
        (waits(PYTHON, machine={"cpus": 8}), WAITING, "May several threads call decode at the same time?"),
        (waits(TUNED, **ONCE_AND_KEPT), ALL_CORES, ""),
        (
            waits(TUNED, RESIZE, **ONCE_AND_KEPT),
            ALL_CORES,
            "Does decode return the same in every epoch, without random numbers, and does an epoch of it fit",
        ),
        (waits(("map", "Map", 40.0, 1.0, ""), FILES), WAITING, "Does each element name a file, and are there several?"),
        (waits(input_kind="numpy", input_first=[ARRAY]), None, "Are all of them so, and is the model's train_step"),
    ],
)
def test_what_was_not_seen_is_asked(run, host, question):
    advice = found(run, "input_bound", host)["advice"]
    assert question in advice["text"] and advice["question"] == bool(question)


@pytest.mark.parametrize("machine, behind", [(MEMORY, (RESIZE,)), ({"cpus": 8}, (RESIZE,)), ({"cpus": 8}, ())])
def test_the_size_of_an_epoch_is_said_where_it_was_seen(machine, behind):
    """Batches of 28 by 28 are known; what a resize behind the slow stage gets may be any size."""
    text = found(waits(TUNED, *behind, epochs=10, machine=machine, **SMALL, **PLAIN), "input_bound", ALL_CORES)
    assert "fit into memory?" in text["advice"]["text"]
    assert ("MB)" in text["advice"]["text"]) == (not behind)


def test_a_window_of_elements_is_no_file():
    assert "file" not in found(waits(*WINDOWS), "input_bound", WAITING)["advice"]["text"].partition(" or ")[0]


@pytest.mark.parametrize(
    "facts, guarded",
    [
        ({}, False),
        ({"machine": {"cpus": 8, "cpus_allowed": 8, "system": "Windows"}}, True),
        ({"framework": TORCH | {"python": "3.14.0"}}, True),
        ({"framework": TORCH | {"python": "3.13.2"}}, False),
    ],
)
def test_workers_that_import_the_script_stand_under_its_guard(facts, guarded):
    run = waits(**{"framework": TORCH} | facts, gpus=[], **DATALOADER)
    advice = found(run, "input_bound", COMPUTING)["advice"]
    assert ("__main__" in advice["code"]) == guarded
    assert "hides its later changes" in advice["text"]


TABLES = [
    *tf_data.REMEDIES,
    *loaders.DATA_LOADER,
    *loaders.PY_DATASET,
    *loaders.GENERATOR,
    *loaders.ARRAYS,
    *loaders.GRAIN,
    *inputs.LOOP,
    *inputs.SET_UP,
    *host.VALIDATION_DATA,
    *host.VALIDATION_LESS,
    *callbacks.EPOCH_WORK,
    *callbacks.STEP_WORK,
]
LIMITS = [*tf_data.LIMITS, *loaders.LIMITS, *inputs.LOOP_LIMITS, *host.VALIDATION_LIMITS]


def test_each_remedy_says_when_it_would_do_harm():
    assert [entry.name for entry in TABLES if entry.code and not entry.wrong_if] == []


def test_a_limit_has_no_code_and_promises_nothing():
    assert [entry.name for entry in LIMITS if entry.code or entry.remedy or entry.asks] == []


def test_full_cores_are_the_limit_and_no_worker_is_added():
    finding = found(waits(**GRAIN | {"input_workers": 8}), "input_bound", ALL_CORES)
    assert finding["advice"]["text"].startswith("All 8 cores are busy: a batch arrives every 40 ms")
    assert finding["advice"]["code"] == "" and finding["saves_s"] == 0
    assert finding["evidence"]["held_up_by"] == "all 8 cores are busy"


def test_what_the_cache_saves_is_what_later_epochs_would_wait():
    for count in (2, 4, 10):
        finding = found(waits(FILTER, epochs=count, machine=MEMORY, **SMALL), "input_bound")
        assert finding["saves_s"] == pytest.approx(finding["lost_s"] * (1 - 1 / count), rel=0.03)


@pytest.mark.parametrize("cpus, gain", [(2, 0.0), (4, 2.0), (64, 4.0)])
def test_threads_save_no_more_than_the_cores_allow(cpus, gain):
    """40 ms a step, 80 ms of work on one thread, a batch needed every 10 ms."""
    finding = found(waits(DECODE, machine={"cpus": cpus}), "input_bound", COMPUTING)
    arrives_ms = max(10, 80 / cpus)
    if gain:
        assert finding["evidence"]["faster_up_to"] == pytest.approx(40 / arrives_ms, rel=0.05)
        assert "AUTOTUNE" in finding["advice"]["code"]
    else:
        assert "AUTOTUNE" not in finding["advice"]["code"], "two cores cannot make them any faster"


def test_containers_have_the_cores_they_may_use():
    machine = {"cpus": 64, "cpus_allowed": 16, "cpu_quota": 4.0}
    finding = found(waits(DECODE, machine=machine), "input_bound", COMPUTING)
    assert finding["evidence"]["faster_up_to"] == pytest.approx(2.0, rel=0.05)


def test_the_verdict_promises_what_the_advice_saves():
    run = waits(FILTER, epochs=2, machine=MEMORY, **SMALL)
    verdict = run.diagnose()["verdict"]
    # 40 ms a step, 30 of them waits, half of them kept: 1.6 times, give or take 1.35.
    assert "1.2 to 2.2× faster" in verdict, verdict


CACHED = (("map(load)", "ParallelMapV2", 60.0, 2.0, "autotuned"), ("cache", "MemoryCache", 0.0, 1.0, ""))
BEHIND = ("map(augment)", "ParallelMapV2", 50.0, 2.0, "autotuned")


@pytest.mark.parametrize(
    "flags, told, code",
    [
        ("autotuned", "without random numbers, and do its results fit", "ds.map(augment, "),
        ("autotuned,stateful", "layers", None),
    ],
)
def test_what_is_cached_is_blamed_for_the_first_epoch_alone(flags, told, code):
    """Later epochs wait for what comes after the cache; another cache is no help."""
    run = waits(*CACHED, (*BEHIND[:4], flags), epochs=5)
    finding = found(run, "input_bound", ALL_CORES)
    assert finding["evidence"]["slowest_stage"] == "map(augment)"
    assert "after the cache" in finding["advice"]["text"] and told in finding["advice"]["text"]
    assert finding["advice"]["code"].startswith(f"ds = {code}") if code else not finding["advice"]["code"]
    first = found(waits(*CACHED, BEHIND), "input_bound", ALL_CORES)
    assert first["evidence"]["slowest_stage"] == "map(load)"
    assert "cache()" not in first["advice"]["code"]


@pytest.mark.parametrize("kind", ["PyDataset", "generator"])
@pytest.mark.parametrize("stages", [[], [GENERATOR]], ids=["", "in Keras' own pipeline"])
def test_threads_that_wait_may_be_more_than_cores(kind, stages):
    facts = {"input_kind": kind, "input_workers": 0, "machine": {"cpus": 2}}
    run = waits(*stages, **facts)
    assert "workers = 5" in found(run, "input_bound", WAITING)["advice"]["code"].replace("s=", "s = ")
    assert found(run, "input_bound", COMPUTING)["advice"]["code"] == ""


@pytest.mark.parametrize(
    "cpus, cpu_pct, told", [(2, 95, "All 2 cores are busy"), (2, 20, "workers = 16"), (16, 30, "workers = 15")]
)
def test_processes_that_have_all_cores_are_not_to_be_more(cpus, cpu_pct, told):
    facts = PYDATASET | {"input_workers": 4, "input_processes": True, "machine": {"cpus": cpus}}
    host = {"process_cpu_pct": 30, "cpu_pct": cpu_pct}
    advice = found(waits(**facts), "input_bound", host)["advice"]
    assert told in f"{advice['text']} {advice['code']}"


@pytest.mark.heavy
def test_batches_that_are_made_once_stay_the_same():
    keras = pytest.importorskip("keras")
    facts = PYDATASET | {"input_workers": 4, "input_processes": True, "machine": {"cpus": 2}}
    host = {"process_cpu_pct": 30, "cpu_pct": 95}
    code = found(waits(epochs=3, **facts), "input_bound", host)["advice"]["code"]
    dataset = apply(code, keras=keras, dataset=[(1, 2), (3, 4)])["dataset"]
    assert [dataset[i] for i in range(len(dataset))] == [(1, 2), (3, 4)]


@pytest.mark.heavy
def test_a_generator_becomes_a_dataset_of_keras():
    keras = pytest.importorskip("keras")
    generator = waits(framework=KERAS_TORCH, input_kind="generator")
    code = found(generator, "input_bound", COMPUTING)["advice"]["code"]
    dataset = apply(code, keras=keras, make_batch=lambda i: (i, -i), number_of_batches=3)["dataset"]
    assert [dataset[i] for i in range(len(dataset))] == [(0, 0), (1, -1), (2, -2)]


@pytest.mark.heavy
def test_a_generator_behind_tf_data_is_split_and_loses_no_batch():
    tf = pytest.importorskip("tensorflow")
    code = found(waits(GENERATOR, PREFETCH), "input_bound", WAITING)["advice"]["code"]
    parts = int(re.search(r"range\((\d+)\)", code)[1])

    def split(generator, _, args):
        spec = tf.TensorSpec((), tf.int32)
        return tf.data.Dataset.from_generator(generator, output_signature=spec, args=args)

    dataset = SimpleNamespace(from_generator=split, range=tf.data.Dataset.range)
    given = SimpleNamespace(data=SimpleNamespace(Options=tf.data.Options, Dataset=dataset))
    ds = apply(code, tf=given, your_generator=lambda k: iter(range(k, 50, parts)))["ds"]
    assert sorted(ds.as_numpy_iterator()) == list(range(50))


def test_a_loop_that_times_its_fetches_is_told_of_no_loader_that_it_may_not_have():
    run = waits(framework=TORCH, input_kind=None, **LOOP)
    assert "The DataLoader makes" not in found(run, "input_bound")["advice"]["text"]


@pytest.mark.heavy
def test_storing_what_a_dataset_makes_is_a_line_that_can_be_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for given in ({}, {"input_iterable": True}):
        facts = DATALOADER | {"input_workers": 8} | given
        host = {"process_cpu_pct": 30, "cpu_pct": 95}
        run = waits(framework=TORCH, epochs=3, **facts)
        advice = found(run, "input_bound", host)["advice"]
        dataset = [(torch.ones(3) * i, i) for i in range(4)]
        after = apply(advice["code"], torch=torch, dataset=dataset)["dataset"]
        assert [label for _, label in after] == [0, 1, 2, 3]
        loader = torch.utils.data.DataLoader(after, batch_size=2)
        assert [len(labels) for _, labels in loader] == [2, 2]
        assert "the same item in every epoch" in what_to_do(advice)


def test_one_worker_is_singular():
    one = loader(input_workers=1)
    assert "1 worker process of the DataLoader is too few" in found(one, "input_bound")["advice"]["text"]


@pytest.mark.parametrize(
    "process_cpu_pct, cpu_pct, told, never",
    [
        (20, 40, "It mostly waits", "computes in Python"),
        (52, 40, "Time one call", "computes in Python"),  # the training's CPU time?
        (52, 95, "Time one call", "computes in Python"),  # as far as it gets a core
        (130, 40, "computes in Python", "waits"),
    ],
)
def test_python_is_said_to_compute_where_it_may_have(process_cpu_pct, cpu_pct, told, never):
    host = {"process_cpu_pct": process_cpu_pct, "cpu_pct": cpu_pct}
    text = found(waits(PYTHON, wait_ms=35), "input_bound", host)["advice"]["text"]
    assert told in text and never not in text


@pytest.mark.parametrize("cpu_pct, told", [(83, "ds.cache()"), (40, "private_threadpool_size")])
def test_calls_that_share_few_cores_are_not_said_to_wait(cpu_pct, told):
    """Images decoded on two cores that another program uses, too."""
    stage = ("map(decode)", "ParallelMapV2", 90.0, 4.0, "autotuned")
    run = waits(stage, wait_ms=27, epochs=3, machine={"cpus": 2, "cpus_allowed": 2})
    host = {"process_cpu_pct": 100, "cpu_pct": cpu_pct}
    assert told in found(run, "input_bound", host)["advice"]["code"]


def test_a_reading_of_more_work_than_the_threads_had_time_for_makes_no_call_wait():
    """JPEG files decoded on two cores: one reading had 43 ms a batch on two threads, which came every 9 ms."""
    stage = ("map(decode)", "ParallelMapV2", 43.0, 2.0, "autotuned")
    run = waits(stage, wait_ms=5, step_ms=4.4, epochs=3, machine={"cpus": 2, "cpus_allowed": 2})
    advice = found(run, "input_bound", {"process_cpu_pct": 125, "cpu_pct": 64})["advice"]
    assert "mostly waits" not in advice["text"] and "private_threadpool_size" not in advice["code"]


@pytest.mark.parametrize("stage_ms, blamed", [(1.8, False), (2.0, True)])
def test_a_stage_is_blamed_that_explains_a_sixth_of_the_wait(stage_ms, blamed):
    """A model that needs a batch every 1.75 ms waits for 1.3 ms; tf.data times its stages, not what is between them."""
    stages = ("map(parse) + batch", "Map", stage_ms, 1.0, "sequential"), ("prefetch", "Prefetch", 0.0, 1.0, "")
    run = waits(*stages, wait_ms=1.2, step_ms=1.65, epochs=3, input_kind="tf.data")
    text = found(run, "input_bound", {"process_cpu_pct": 100, "cpu_pct": 55})["advice"]["text"]
    assert ("map(parse)" in text) == blamed and ("outside the pipeline" in text) != blamed


LOADER = DATALOADER | {"input_workers": 2, "input_pin_memory": True}


@pytest.mark.parametrize(
    "handed_ms, more, told, never",
    [
        (2.3, {}, "batch_size=64", "too few"),
        (2.3, {"input_pin_memory": False}, "pin_memory=True", "batch_size"),
        (0.4, {}, "num_workers=4", "handing"),  # less than half of the wait
    ],
)
def test_finished_batches_need_no_more_workers(handed_ms, more, told, never):
    facts = LOADER | more | {"input_ready_pct": 98.2, "input_handover_ms": handed_ms}
    run = waits(framework=TORCH, wait_ms=2.5, step_ms=8, machine={"cpus": 4}, **facts)
    advice = found(run, "input_bound")["advice"]
    words = " ".join((advice["text"], advice["code"]))
    assert told in words and never not in words
    assert ("98 % of the batches were finished" in words) == (handed_ms == 2.3)


def test_more_workers_promise_nothing_of_the_handing_over():
    findings = [
        found(
            waits(
                framework=TORCH,
                wait_ms=10,
                step_ms=5,
                **LOADER | {"input_ready_pct": 40.0, "input_handover_ms": handed_ms},
            ),
            "input_bound",
            {"process_cpu_pct": 30, "cpu_pct": 12},
        )
        for handed_ms in (0.1, 4.0)
    ]
    alone, handed = (finding["evidence"]["faster_up_to"] for finding in findings)
    assert 1 < handed < alone


@pytest.mark.parametrize(
    "workers, cpu_pct, told",
    [
        (8, 20, "num_workers=16"),  # all cores have a worker, and idle: it waits
        (8, 90, "same item in every epoch"),
        (2, 20, "num_workers=6"),  # two of eight cores compute
    ],
)
def test_workers_that_wait_may_be_more_than_cores(workers, cpu_pct, told):
    run = loader(epochs=3, input_workers=workers)
    host = {"process_cpu_pct": 30, "cpu_pct": cpu_pct}
    advice = found(run, "input_bound", host)["advice"]
    assert told in f"{advice['text']} {advice['code']}"


@pytest.mark.parametrize("ms, said", [(0.77, "0.8 ms"), (0.04, "under 0.1 ms"), (3.4, "3.4 ms")])
def test_short_times_are_said(ms, said):
    assert brief(ms) == said


MAPPED = ("map(decode)", "Map", 30.0, 1.0, "sequential")


@pytest.mark.parametrize("serial_ms, gain", [(0.1, 4.4), (15.0, 3.0)])
def test_threads_promise_no_more_than_the_stages_beside_them_let_through(serial_ms, gain):
    """A batch each 45 or 60 ms; behind the map's threads a generator makes one after the other."""
    source = ("generator", "Generator", serial_ms, 1.0, "py_function")
    arrives = max(30.0 + serial_ms, 44.0)
    run = waits(source, MAPPED, PREFETCH, wait_ms=arrives - 10, machine={"cpus": 2})
    finding = found(run, "input_bound", WAITING)
    assert finding["evidence"]["slowest_stage"] in ("map(decode)", "generator")
    assert finding["evidence"]["faster_up_to"] == pytest.approx(gain, rel=0.06)


def test_processes_promise_no_more_than_the_cores_let_through():
    """30 ms of one core for a batch each 40 ms: of two cores none is free, of sixteen enough."""
    gains = [
        found(dataset(machine={"cpus": cpus}, gpus=[]), "input_bound", {"process_cpu_pct": 90, "cpu_pct": 50})[
            "evidence"
        ]["faster_up_to"]
        for cpus in (2, 16)
    ]
    assert gains == [1.0, pytest.approx(4.0, rel=0.06)]


def test_threads_promise_no_more_than_python_lets_through():
    """Making a batch takes 30 ms, of which 14 compute under Python's one lock."""
    host = {"process_cpu_pct": 48, "cpu_pct": 10}
    run = dataset(wait_ms=40)
    finding = found(run, "input_bound", host)
    assert finding["evidence"]["faster_up_to"] == pytest.approx(50 / 14, rel=0.06)


@pytest.mark.parametrize("kind", ["Ahead", "Pooled"])
def test_who_works_ahead_is_not_asked_to_again(kind):
    code = found(waits(framework=JAX, input_kind=kind, wait_ms=8, **LOOP), "input_bound", WAITING)
    assert "class Ahead" not in code["advice"]["code"]


@pytest.mark.parametrize("process_cpu_pct, waiting", [(10, True), (90, False)])
def test_the_code_for_loops_survives_epochs(process_cpu_pct, waiting):
    host = {"process_cpu_pct": process_cpu_pct, "cpu_pct": 50}
    slow = generator(**LOOP)
    code = found(slow, "input_bound", host)["advice"]["code"]
    dataset = apply(code, make_batch=abs, number_of_batches=30)["dataset"]
    assert [list(dataset), list(dataset)] == [list(range(30))] * 2
    assert ("Thread" in type(dataset.pool).__name__) == waiting
    dataset.pool.shutdown()
    fast = generator(wait_ms=8, input_class="read", **LOOP)
    code = found(fast, "input_bound")["advice"]["code"]
    dataset = apply(code, read=lambda *_: iter(range(30)))["dataset"]
    assert [list(dataset), list(dataset)] == [list(range(30))] * 2
    code = found(waits(input_kind=None, wait_ms=8, **LOOP), "input_bound")["advice"]["code"]
    dataset = apply(code, dataset=range(30))["dataset"]
    assert [list(dataset), list(dataset)] == [list(range(30))] * 2


def test_a_stage_that_only_passes_batches_on_is_not_to_do_less():
    """A prefetch on a busy machine, behind a full cache."""
    run = waits(("cache", "MemoryCache", 0.2, 1.0, ""), ("prefetch", "Prefetch", 2.0, 1.0, ""))
    finding = found(run, "input_bound", COMPUTING)
    assert "prefetch takes" not in finding["advice"]["text"]


@pytest.mark.parametrize("cpu_pct, waits_for_files", [(20, True), (99, False)])
def test_who_gets_a_third_of_a_core_on_a_full_machine_is_not_said_to_wait(cpu_pct, waits_for_files):
    run = waits(**TWO_CORES, **DATALOADER, **LOOP)
    finding = found(run, "input_bound", {"process_cpu_pct": 33, "cpu_pct": cpu_pct})
    assert ("num_workers=4" in finding["advice"]["code"]) == waits_for_files


def test_processes_promise_nothing_of_cores_that_others_have():
    """30 ms of one core for a batch; of two cores another program has 0.8."""
    host = {"process_cpu_pct": 75, "cpu_pct": 77.5}
    run = waits(**TWO_CORES, **DATALOADER, **LOOP)
    finding = found(run, "input_bound", host)
    assert finding["evidence"]["faster_up_to"] == 1.0 and finding["advice"]["code"] == ""


def test_calls_that_go_are_no_work_left_for_the_cores():
    """2,000 calls a batch keep both cores busy: on whole batches their work is not to be spread."""
    stages = ("map(scale)", "ParallelMapV2", 74.0, 2.0, ""), ("batch", "BatchV2", 1.0, 1.0, "")
    run = waits(*stages, elements=2000, machine={"cpus": 2}, gpus=[], batch_size=2000)
    finding = found(run, "input_bound", {"process_cpu_pct": 190, "cpu_pct": 99})
    assert "Can scale work on whole batches? If so, batch first" in finding["advice"]["text"]
    assert finding["advice"]["question"] and finding["saves_s"] == 0
    least, most = finding["saves_range_s"]
    assert 0.5 * finding["lost_s"] < least < most == finding["lost_s"], "no more is saved than is lost"


@pytest.mark.parametrize("gpus", [[], [GPU]])
def test_on_a_cpu_a_cure_may_save_what_the_steps_lose_to_their_input(gpus):
    """Every fourth step shows how quick a step is that shares no core; on a GPU none does."""
    even, uneven = (run_of(gpus=gpus, machine=MEMORY | {"cpus": 1}, **PLAIN, **SMALL) for _ in range(2))
    for run, quick_ms in (even, 10.0), (uneven, 4.0):
        slow_ms = (40 - quick_ms) / 3
        for _ in range(4):
            with run.epoch():
                run.steps(100, step_ms=np.tile([quick_ms, slow_ms, slow_ms, slow_ms], 25), wait_ms=20)
                run.reading(TUNED, batches=100)
    of_even, of_uneven = (found(run, "input_bound", ALL_CORES)["saves_range_s"] for run in (even, uneven))
    assert of_uneven[0] == pytest.approx(of_even[0], rel=0.02)
    assert (of_uneven[1] > of_even[1] + 1) == (not gpus)


@pytest.mark.parametrize("blamed", [True, False])
def test_a_mean_over_faster_batches_clears_no_stage(blamed):
    """30 ms a batch for 100 steps read as 10 over 300; the same 10 of these alone are no cause."""
    run = run_of()
    run.steps(100, step_ms=10)
    run.steps(100, step_ms=10, wait_ms=25)
    run.steps(100, step_ms=10)
    batches = 300 if blamed else 100
    run.reading(("map(decode)", "ParallelMapV2", 8.0, 1.0, ""), PREFETCH, batches=batches)
    finding = found(run, "input_bound", COMPUTING)
    assert ("map(decode)" in str(finding["evidence"])) == blamed
    assert "takes 8" not in finding["advice"]["text"] or not blamed


def test_a_mean_over_the_faster_time_before_clears_no_stage():
    """31 slow batches after 57 fast ones, as one reading: 11 ms each, not 30."""
    run = run_of()
    run.steps(45, step_ms=10)
    run.reading(("map(decode)", "ParallelMapV2", 0.2, 1.0, ""), PREFETCH, batches=45)
    run.steps(55, step_ms=10)
    run.steps(33, step_ms=10, wait_ms=20)
    run.reading(("map(decode)", "ParallelMapV2", 11.0, 1.0, ""), PREFETCH, batches=88)
    run.steps(67, step_ms=10, wait_ms=20)
    run.steps(100, step_ms=10)
    run.reading(("map(decode)", "ParallelMapV2", 12.0, 1.0, ""), PREFETCH, batches=167)
    finding = found(run, "input_bound", COMPUTING)
    assert "map(decode)" in str(finding["evidence"])
    assert "fast enough on average" not in finding["advice"]["text"]


def test_files_that_no_stage_is_timed_for_are_not_fast_enough():
    """Waiting within a file that an interleave opened is counted for none of the stages."""
    run = run_of()
    run.steps(100, step_ms=10, wait_ms=70)
    for _ in range(2):
        run.reading(
            ("interleave(open_file)", "Interleave", 0.1, float("nan"), "sequential"),
            ("map(label)", "ParallelMapV2", 0.1, 2.0, "autotuned"),
            PREFETCH,
            batches=100,
        )
        run.steps(100, step_ms=10, wait_ms=70)
    finding = found(run, "input_bound", {"process_cpu_pct": 4, "cpu_pct": 5})
    assert "interleave(open_file) reads one file at a time" in finding["advice"]["text"]
    assert finding["advice"]["question"] and finding["saves_range_s"][1] > 0.5 * finding["lost_s"]


@pytest.mark.parametrize("epoch_steps, said", [(1, True), (40, False)])
def test_an_iterator_for_each_step_is_named(epoch_steps, said):
    run = waits(DECODE, **LOOP, steps_per_epoch=epoch_steps)
    advice = found(run, "input_bound", COMPUTING)["advice"]
    assert ("makes an iterator of its own" in advice["text"]) == said
    assert not (said and advice["code"]), "the loop may want the first batch of each pass"


@pytest.mark.parametrize("facts, changes", [(PLAIN, ""), (RANDOM, "which random numbers each")])
def test_parallel_calls_of_a_random_map_draw_other_numbers(facts, changes):
    advice = found(waits(DECODE, machine={"cpus": 8}, **facts), "input_bound", COMPUTING)["advice"]
    assert "num_parallel_calls=tf.data.AUTOTUNE" in advice["code"]
    assert advice["changes"].startswith(changes) and bool(advice["changes"]) == bool(changes)
    assert advice["changes"] in advice["text"]


def timed(kind: str, framework: dict, wall_ms: float, **facts) -> Generated:
    """A run whose `Images.__getitem__` takes so long of each wait of 30 ms, and computes for half of that."""
    entry = {"name": "Images.__getitem__", "calls": 400, "timed": 25, "wall_ms": wall_ms, "cpu_ms": wall_ms / 2}
    return waits(framework=framework, **PYDATASET | {"input_kind": kind, "input_calls": [entry]} | facts)


HANDLED = [
    (JAX, "numpy", "Keras copies each batch to the GPU (jax.device_put)"),
    (KERAS_TORCH, "numpy", "Keras converts each batch and copies it to the GPU"),
    (KERAS_TORCH, "torch", "Keras copies each batch to the GPU"),
    (TF_KERAS, "numpy", "Keras has tf.data convert each batch (from_generator), on another thread"),
]


@pytest.mark.parametrize("kind", ["PyDataset", "generator"])
@pytest.mark.parametrize(("framework", "given", "handling"), HANDLED)
@pytest.mark.parametrize("workers", [0, 1])
def test_no_workers_are_offered_where_the_wait_is_for_a_finished_batch(kind, framework, given, handling, workers):
    """Keras copied 256 MB a batch for 100 ms, and `__getitem__` took 6 µs of them, on an H200."""
    run = timed(kind, framework, 0.006, input_workers=workers, input_first=[ARRAY | {"type": given}])
    finding = found(run, "input_bound", COMPUTING)
    advice = finding["advice"]
    assert advice["text"].startswith(
        f"Images.__getitem__ takes 6 µs a batch; then {handling}, with or without workers: "
    )
    assert (advice["code"], advice["question"], finding["saves_s"]) == ("", False, 0)
    assert ("torch.from_numpy" in advice["text"]) == (framework is KERAS_TORCH and given == "numpy")
    assert run.diagnose()["verdict"].endswith(f"{handling}.")


@pytest.mark.parametrize("first", [[], [ARRAY | {"type": "torch"}], [ARRAY | {"type": "memmap"}]])
def test_tensors_are_advised_where_arrays_were_seen(first):
    advice = found(timed("PyDataset", KERAS_TORCH, 0.3, input_first=first), "input_bound", COMPUTING)["advice"]
    assert advice["text"].startswith("Images.__getitem__ takes 0.3 ms a batch; then Keras ")
    assert "torch.from_numpy" not in advice["text"]
    of_disk = bool(first) and first[0]["type"] == "memmap"
    assert ("read from disk" in advice["text"]) is of_disk is ("fewer bytes" not in advice["text"])


@pytest.mark.parametrize(
    ("framework", "facts"),
    [
        (JAX, {"gpus": []}),
        (KERAS_TORCH, {"gpus": [], "input_first": [ARRAY | {"type": "torch"}]}),
        (TORCH, LOOP),
        (JAX, LOOP),
    ],
)
def test_nothing_is_said_of_a_handling_that_keras_does_not_do(framework, facts):
    run = timed("PyDataset", framework, 0.006, **facts)
    told = [found(run, "input_bound", COMPUTING)["advice"]["text"], run.diagnose()["verdict"]]
    assert not any("with or without workers" in text or "Keras co" in text for text in told)


def test_what_keras_does_with_a_batch_limits_what_workers_gain():
    gains = [
        found(timed("PyDataset", KERAS_TORCH, wall_ms), "input_bound", WAITING)["saves_range_s"][1]
        for wall_ms in (30.0, 15.0)
    ]
    assert gains[1] < 0.8 * gains[0]


def test_batches_that_are_slow_in_a_part_of_the_run_are_not_made_at_once():
    entry = {"name": "Images.__getitem__", "calls": 1000, "timed": 75, "wall_ms": 3.0, "cpu_ms": 0.1}
    run = run_of(framework=KERAS_TORCH, **PYDATASET | {"input_calls": [entry]})
    run.steps(900, step_ms=10, wait_ms=0.05, gpu_share=0.9)
    run.steps(100, step_ms=10, wait_ms=30, gpu_share=0.3)
    assert "dataset.workers" in found(run, "input_bound", WAITING)["advice"]["code"]


@pytest.mark.parametrize("wall_ms", [0.1, 63.0], ids=["missed by the timed calls", "seen"])
def test_where_every_tenth_batch_is_slow_workers_are_offered(wall_ms):
    """A generator opens a file for each tenth batch: the others come at once."""
    entry = {"name": "Images.__getitem__", "calls": 1000, "timed": 77, "wall_ms": wall_ms, "cpu_ms": 0.05}
    run = run_of(framework=KERAS_TORCH, **PYDATASET | {"input_calls": [entry]})
    for _ in range(100):
        run.steps(1, step_ms=10, wait_ms=630, gpu_share=0.3)
        run.steps(9, step_ms=10, wait_ms=0.3, gpu_share=0.9)
    finding = found(run, "input_bound", WAITING)
    assert "dataset.workers" in finding["advice"]["code"]
    assert "with or without" not in finding["advice"]["text"] + run.diagnose()["verdict"]
