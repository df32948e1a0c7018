"""Advice about inputs fits the run: the facts decide which line is printed."""

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
    READER,
    TF_KERAS,
    TORCH,
    TUNED,
    WAITING,
    check_line,
    found,
    run_of,
    waits,
)
from generated_runs import START_NS, Generated

from gpu_util_callback.diagnosis.advice import callbacks, host, loaders, tf_data
from gpu_util_callback.diagnosis.advice import input as inputs
from gpu_util_callback.diagnosis.advice.input_wait import brief
from gpu_util_callback.words import what_to_do

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
REPEAT, ZIP = ("repeat", "RepeatDataset", 0.1, 1.0, ""), ("zip", "ZipDataset", 0.1, 1.0, "")
MAP, FLAT = ("map", "Map", 40.0, 1.0, ""), ("flat_map", "FlatMap", 0.1, 1.0, "")
FILES = ("interleave(open_file)", "Interleave", 0.1, 1.0, "sequential")
NAMES, OPENED = (
    ("shuffle", "Shuffle", 0.0, 1.0, ""),
    ("interleave(lambda)", "ParallelInterleaveV4", 0.1, 8.0, "autotuned"),
)
WINDOWS = ("window", "WindowDataset", 0.1, 1.0, ""), ("flat_map(lambda)", "FlatMap", 40.0, 1.0, "sequential")
AUGMENT = ("map(augment)", "ParallelMapV2", 80.0, 8.0, "autotuned,random")
QUICKER = ("map(decode)", "ParallelMapV2", 160.0, 8.0, "autotuned"), (*AUGMENT[:2], 200.0, *AUGMENT[3:])
AUGMENTED = ONCE_AND_KEPT | {
    "input_maps": [
        {"name": "map(decode)", "which": "train", "random": False, "python": False},
        {"name": "map(augment)", "which": "train", "random": True, "python": False},
    ]
}
NAMES_ALONE = {"input_shuffles": False}
SAMPLED = ("sample_from_datasets", "DirectedInterleave", 1.0, 1.0, "")
REJECT, REJECTS = (
    ("filter(_reject)", "Filter", 1.0, 1.0, "library,random,stateful"),
    {"name": "filter(_reject)", "which": "train", "random": True, "python": False},
)
CHOSEN = ("map(select_dataset)", "ParallelMapV2", 35.0, 1.0, "autotuned,library,random,sequential")
RESIZE = ("map(resize)", "ParallelMapV2", 4.0, 8.0, "autotuned")
PARALLEL, FIXED = (("map(decode)", "ParallelMapV2", 40.0, 1.0, f"{of}py_function") for of in ("", "fixed_parallelism,"))
MANY_THREADS = ("map(decode)", "ParallelMapV2", 240.0, 8.0, "py_function,autotuned,stateful")
UNSIZED = {"input_dims": [[None, 64, 64, 3]], "steps_per_epoch": None}
THREADS, PROCESSES = ({"input_workers": 4, "input_processes": processes} for processes in (False, True))

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


# run, host, in the code, never in the code
INPUTS = [
    (waits(DECODE), None, "num_parallel_calls=tf.data.AUTOTUNE", "prefetch"),
    (waits(DECODE), COMPUTING, "ds.map(decode, ", "fn"),
    (waits(DECODE, machine={"cpus": 2}), WAITING, "private_threadpool_size = 12", "cache"),
    (waits(PYTHON, machine={"cpus": 64}), WAITING, "ds = ds.map(decode, num_parallel_calls=6)", "threadpool"),
    (waits(PYTHON, timing="graph (determinism)"), WAITING, "num_parallel_calls=6", "AUTOTUNE"),
    (waits(PARALLEL, timing="graph (determinism)"), WAITING, "set_random_seed(0)  # alone", "num_parallel_calls"),
    (waits(FIXED, timing="graph (determinism)"), WAITING, "set_random_seed(0)  # alone", "num_parallel_calls"),
    (waits(DECODE, timing="graph (determinism)"), COMPUTING, "num_parallel_calls=tf.data.AUTOTUNE", "seed"),
    (waits(PYTHON, **call(0.1)), NEIGHBOUR, "ds.map(decode, num_parallel_calls=6)", "tf.image"),
    (waits(GENERATOR, PREFETCH, **PYDATASET, **call(0.1)), WAITING, "dataset.workers = 5", "from_generator"),
    (waits(MANY_THREADS), WAITING, "num_parallel_calls=32", "without"),
    (waits(TUNED, **ONCE_AND_KEPT), ALL_CORES, "ds = ds.cache()", "AUTOTUNE"),
    (waits(LIBRARY, SHUFFLE, **ONCE_AND_KEPT), ALL_CORES, ".cache().shuffle(", "before shuffle"),
    (waits(LIBRARY, SHUFFLE, **ONCE_AND_KEPT | UNSIZED), ALL_CORES, ".cache().shuffle(", "before shuffle"),
    (waits(TUNED, SHUFFLE, **ONCE_AND_KEPT), ALL_CORES, "# behind map(decode), before shuffle", ".shuffle("),
    (waits(TUNED, AUGMENT, **AUGMENTED), ALL_CORES, "ds = ds.cache()  # behind map(decode)", "AUTOTUNE"),
    (waits(CHOSEN, SAMPLED, elements=2048, **AUGMENTED), COMPUTING, "tf.concat(rows, 0)", "map(your_function"),
    (waits(*QUICKER, **AUGMENTED), ALL_CORES, "ds = ds.cache()  # behind map(decode)", "AUTOTUNE"),
    (waits(LIBRARY, AUGMENT, SHUFFLE, **AUGMENTED), ALL_CORES, "# before map(augment)", "as the last step"),
    (waits(SHUFFLE, LIBRARY, **ONCE_AND_KEPT | NAMES_ALONE), ALL_CORES, "# as the last step", "behind"),
    (
        waits(SHUFFLE, TUNED, **ONCE_AND_KEPT | NAMES_ALONE),
        ALL_CORES,
        "ds.cache().shuffle(buffer_size)  # behind map(decode), before batch",
        "AUTOTUNE",
    ),
    (
        waits(NAMES, OPENED, TUNED, SHUFFLE, **ONCE_AND_KEPT),
        ALL_CORES,
        "# behind map(decode), before shuffle",
        "AUTOTUNE",
    ),
    (
        waits(READER, OPENED, RESIZE, SHUFFLE, **ONCE_AND_KEPT),
        ALL_CORES,
        "# behind map(resize), before",
        "behind TFRec",
    ),
    (waits(TUNED, ZIP, SHUFFLE, **ONCE_AND_KEPT), ALL_CORES, "ds = ds.cache()  # behind zip, before", "AUTOTUNE"),
    (waits(TUNED, ZIP, SHUFFLE, epochs=10, machine=MEMORY, **SMALL), ALL_CORES, "# behind map(decode), before", "zip"),
    (waits(TUNED, SHUFFLE, ZIP, **ONCE_AND_KEPT), ALL_CORES, "ds = ds.cache()  # behind map(decode), before", "zip"),
    (waits(READER, FLAT), None, "tf.data.TFRecordDataset(filenames, num_par", "interleave"),
    (waits(MAP, FILES), WAITING, "files.interleave(open_file, cycle_length=8, num_parallel_calls=8", "your_function"),
    (waits(input_autotune=False, epochs=5), None, "options.autotune.enabled = True", "cache"),
    (waits(("map(lambda)", *PYTHON[1:])), WAITING, "ds.map(your_function, ", "lambda"),
    (waits(framework=JAX, input_kind=None, **LOOP), None, "class Pooled", "ds."),
    (waits(input_kind=None, epochs=5, wait_ms=8, **LOOP), None, "class Ahead", "cache"),
    (waits(framework=TORCH, input_kind=None, **LOOP), None, "torch.utils.data.DataLoader(", "ds."),
    (waits(framework=TORCH, input_kind=None), None, "num_workers=", "ds."),
    (loader(**LOOP, trainer="transformers"), COMPUTING, "dataloader_num_workers=3, dataloader_pers", "DataLoader("),
    (loader(**LOOP), COMPUTING, "..., num_workers=3, persistent_workers=True, pin_memory=True)", "ds."),
    (loader(gpus=[], **LOOP), WAITING, "num_workers=4", "pin_memory"),
    (loader(input_pin_memory=True), WAITING, "num_workers=4", "pin_memory"),
    (loader(input_workers=2), COMPUTING | {"children_cpu_pct": 200}, "num_workers=5", "AUTOTUNE"),
    (waits(framework=JAX, **DATALOADER), WAITING, "num_workers=", "ds."),
    (dataset(), WAITING, "dataset.workers = 4", "multiprocessing"),
    (dataset(gpus=[]), COMPUTING, "dataset.use_multiprocessing = True", "ds."),
    (dataset(), COMPUTING, 'get_context("spawn")', "use_multiprocessing"),
    (waits(**PYDATASET | THREADS), COMPUTING, "use_multiprocessing = True", "AUTOTUNE"),
    (waits(framework=TF_KERAS, **PYDATASET), COMPUTING, "model.fit(..., workers=", "dataset."),
    (waits(framework=KERAS_TORCH, input_kind="generator"), COMPUTING, "(keras.utils.PyDataset)", "DataLoader"),
    (generator(input_class="read", wait_ms=8, **LOOP), None, "Ahead(lambda: read(...))", "keras"),
    (generator(**LOOP), WAITING, "ThreadPoolExecutor(4)", "spawn"),
    (generator(**LOOP), COMPUTING, "Pooled(make_batch, number_of_batches)", "ThreadPool"),
    (waits(("map(decode)", "Map", 8.0, 1.0, "sequential"), wait_ms=8, **LOOP), None, "ds.prefetch(", "num_parallel"),
    (waits(framework=TORCH, input_kind="generator", **LOOP), None, "torch.utils.data.DataLoader(", "keras"),
    (waits(REPEAT, ZIP, TUNED, **ONCE_AND_KEPT), ALL_CORES, "ds = ds.cache()", "AUTOTUNE"),  # which ends
    (waits(DECODE, framework=KERAS_TORCH), None, "tf.data.AUTOTUNE", "DataLoader"),
    (waits(**GRAIN), COMPUTING, "worker_count=3)", "mp_"),
    (waits(framework=JAX, input_kind="grain"), COMPUTING, "mp_prefetch", "tf.data"),
    (waits(wait_ms=90, **GRAIN, machine={"cpus": 2}), WAITING, "worker_count=11)", "mp_prefetch"),
    (waits(**GRAIN | {"input_class": "MapDataset"}), COMPUTING, "to_iter_dataset().mp_prefetch(", "worker_count"),
]
# run, host: no line is printed, and nothing promised
NO_LINE = [
    (waits(DECODE, machine={"cpus": 2}), ALL_CORES),
    (waits(PYTHON), COMPUTING),
    (waits(PYTHON, **call(39)), WAITING),
    (waits(PYTHON, **call(9, queued_ms=30)), NEIGHBOUR),
    (waits(MANY_THREADS), {"process_cpu_pct": 105, "cpu_pct": 20}),
    (waits(TUNED), ALL_CORES),
    (waits(TUNED, epochs=10, **SMALL, **PLAIN, machine=MEMORY | {"memory_total_bytes": 2**25}), ALL_CORES),
    (waits(TUNED, epochs=10, machine=MEMORY, **SMALL, **RANDOM), ALL_CORES),
    (waits(SHUFFLE, TUNED, **ONCE_AND_KEPT), ALL_CORES),
    (waits(AUGMENT, TUNED, **AUGMENTED), ALL_CORES),
    # Both are inside of `rejection_resample`, where no program can put a cache.
    (waits(LIBRARY, REJECT, SHUFFLE, **ONCE_AND_KEPT | {"input_maps": [REJECTS]}), ALL_CORES),
    (waits((*SAMPLED[:2], 40.0, 1.0, ""), **ONCE_AND_KEPT), ALL_CORES),
    (waits(("batch", "BatchV2", 40.0, 1.0, ""), PREFETCH, epochs=10, machine=MEMORY, **SMALL), COMPUTING),
    (waits(FILTER), None),
    (waits(BATCH), COMPUTING),
    (waits(), None),
    (waits(**TWO_CORES, **DATALOADER), {"process_cpu_pct": 180, "cpu_pct": 95}),
    (waits(**TWO_CORES, step_threads=2, **DATALOADER), {"process_cpu_pct": 95, "cpu_pct": 50}),
    (loader(input_workers=8), ALL_CORES),
    (loader(input_workers=8, input_class="TensorDataset", epochs=10), ALL_CORES),
    (dataset(gpus=[], machine={"cpus": 2}), COMPUTING),
    (waits(GENERATOR, PREFETCH, **LOOP), COMPUTING),
    (waits(input_kind="numpy"), None),
    (waits(input_kind="numpy", input_first=[ARRAY, ARRAY | {"rank": 2}, ARRAY]), None),
    (waits(REPEAT, TUNED, **ONCE_AND_KEPT), ALL_CORES),
    (waits(input_kind="numpy", input_first=[ARRAY | {"max": 1.0, "integers": False}]), None),
    (waits(input_kind="numpy", input_first=[ARRAY | {"max": 1.0}]), None),
    (waits(input_kind="numpy", input_first=[ARRAY | {"rank": 2}]), None),
    (waits(framework=JAX, input_kind="numpy"), None),
    (waits(**GRAIN), ALL_CORES),
]


@pytest.mark.parametrize("run, host, there, never", [*INPUTS, *((*row, "", None) for row in NO_LINE)])
def test_the_line_fits_the_run(run, host, there, never):
    check_line(run, "input_bound", host, there, never)


def busy(process: float, all_cores: float, **more) -> dict:
    """CPU percentages: of the process (100 = a core), and of all cores."""
    return {"process_cpu_pct": process, "cpu_pct": all_cores} | more


def handed(ms: float, **facts) -> Generated:
    """A loader with two workers, whose finished batches take so long to be handed over; it waits 2.5 ms."""
    known = {"input_workers": 2, "input_pin_memory": True, "input_ready_pct": 98.2, "input_handover_ms": ms}
    return loader(**{"wait_ms": 2.5, "step_ms": 8, "machine": {"cpus": 4}} | known | facts)


IN_MEMORY = {"input_first": [ARRAY | {"bytes": 5_000_000}]}  # 4.2 ms of a core copy such a batch


def shared(ms: float, threads: float, **facts) -> Generated:
    """Images decoded on two cores that another program uses, too."""
    stage = ("map(decode)", "ParallelMapV2", ms, threads, "autotuned")
    return waits(stage, epochs=3, machine={"cpus": 2, "cpus_allowed": 2}, **facts)


def parsed(ms: float) -> Generated:
    """A model that needs a batch every 1.75 ms waits for 1.3 ms; tf.data times its stages, not what is between them."""
    stages = ("map(parse) + batch", "Map", ms, 1.0, "sequential"), ("prefetch", "Prefetch", 0.0, 1.0, "")
    return waits(*stages, wait_ms=1.2, step_ms=1.65, epochs=3)


def guarded(**facts) -> Generated:
    return waits(**{"framework": TORCH} | facts, gpus=[], **DATALOADER)


def one_of_two(**facts) -> Generated:
    run = waits(**facts)
    run.facts |= {"world_size": 2}
    return run


SHARED_NODE = {"cpus": 128, "cpus_allowed": 8}
starved = dataset(**PROCESSES | {"input_workers": 2}, gpus=[], machine={"cpus": 2, "cpus_allowed": 2})


def unread(machine: dict, *behind, known: dict = PLAIN) -> Generated:
    """Batches of 28 by 28 are known; what a resize behind the slow stage gets may be any size.

    A cache stands behind the resize where no map is random.
    """
    return waits(TUNED, *behind, epochs=10, machine=machine, **SMALL, **known)


# run, host, in the text or the code, never in them
SAID = [
    # Seen: 16 workers of JPEG files on two full cores were promised to be three times faster.
    (starved, busy(30, 97, children_cpu_pct=60), "Both cores are busy", "workers = 16"),
    # The others have cores of their own: 60 of the 120 that this process may not use.
    (guarded(machine=SHARED_NODE), busy(790, 53), "All 8 cores are busy", "other programs"),
    # Seen: a rank of two on one host was told to stop what else runs there, which was the other one.
    (waits(**TWO_CORES, **DATALOADER, **LOOP), busy(90, 97), "with other programs", "of this job"),
    (one_of_two(**TWO_CORES, **DATALOADER, **LOOP), busy(90, 97), "with other processes of this job", "stop"),
    (waits(PYTHON, wait_ms=35), busy(20, 40), "It mostly waits", "computes in Python"),
    (waits(PYTHON, wait_ms=35), busy(52, 40), "Time one call", "computes in Python"),  # the training's CPU time?
    (waits(PYTHON, wait_ms=35), busy(52, 95), "Time one call", "computes in Python"),  # as far as it gets a core
    (waits(PYTHON, wait_ms=35), busy(130, 40), "computes in Python", "waits"),
    (shared(90.0, 4.0, wait_ms=27), busy(100, 83), "ds.cache()", "private_threadpool_size"),
    (shared(90.0, 4.0, wait_ms=27), busy(100, 40), "private_threadpool_size", "ds.cache()"),
    # JPEG files: a reading of more work (43 ms a batch on two threads) than they had time for (9 ms).
    (shared(43.0, 2.0, wait_ms=5, step_ms=4.4), busy(125, 64), "", "mostly waits"),
    (shared(43.0, 2.0, wait_ms=5, step_ms=4.4), busy(125, 64), "", "private_threadpool_size"),
    (parsed(1.8), busy(100, 55), "outside the pipeline", "map(parse)"),  # less than a sixth of the wait
    (parsed(2.0), busy(100, 55), "map(parse)", "outside the pipeline"),
    (handed(2.3), None, "98 % of the batches were finished", "too few"),
    (handed(0.4), None, "num_workers=4", "handing"),  # less than half of the wait
    (handed(0.4), None, "", "of the batches were finished"),
    (handed(0.4, **IN_MEMORY), busy(80, 40, children_cpu_pct=40), "num_workers=0", "same item"),
    (handed(0.4, **IN_MEMORY), busy(80, 40, children_cpu_pct=90), "", "num_workers=0"),  # they compute as well
    (handed(0.4, **IN_MEMORY, input_ready_pct=20.0), busy(80, 40, children_cpu_pct=40), "", "num_workers=0"),
    (loader(epochs=3, input_workers=8), busy(30, 20), "num_workers=16", "same item"),  # all idle: it waits
    (loader(epochs=3, input_workers=8), busy(30, 90), "same item in every epoch", "num_workers=16"),
    (loader(epochs=3, input_workers=2), busy(30, 20), "num_workers=6", "same item"),  # two of eight cores compute
    (loader(input_workers=1), None, "1 worker process of the DataLoader is too few", "processes"),
    (waits(**PYDATASET | PROCESSES, machine={"cpus": 2}), busy(30, 95), "Both cores are busy", "workers ="),
    (waits(**PYDATASET | PROCESSES, machine={"cpus": 2}), busy(30, 20), "workers = 16", "cores are busy"),
    (waits(**PYDATASET | PROCESSES, machine={"cpus": 16}), busy(30, 30), "workers = 15", "cores are busy"),
    (waits(framework=JAX, input_kind="Ahead", wait_ms=8, **LOOP), WAITING, "", "class Ahead"),  # it is one already
    (waits(framework=JAX, input_kind="Pooled", wait_ms=8, **LOOP), WAITING, "", "class Ahead"),
    (waits(**TWO_CORES, **DATALOADER, **LOOP), busy(33, 20), "num_workers=4", "cores are busy"),
    (waits(**TWO_CORES, **DATALOADER, **LOOP), busy(33, 99), "", "num_workers=4"),
    (waits(framework=TORCH, input_kind=None, **LOOP), None, "", "The DataLoader makes"),  # it may have none
    (
        waits(("cache", "MemoryCache", 0.2, 1.0, ""), ("prefetch", "Prefetch", 2.0, 1.0, "")),
        COMPUTING,
        "",
        "prefetch takes",
    ),
    (waits(DECODE, **LOOP, steps_per_epoch=1), COMPUTING, "makes an iterator of its own", "ds."),
    (waits(DECODE, **LOOP, steps_per_epoch=40), COMPUTING, "ds.", "makes an iterator of its own"),
    (waits(DECODE, machine={"cpus": 2}), COMPUTING, "", "AUTOTUNE"),  # two cores cannot make them any faster
    (waits(*WINDOWS), WAITING, "", "Does each element name a file"),
    (unread(MEMORY, RESIZE), ALL_CORES, "(40 MB). Keep its result", "fit into memory?"),
    (unread({"cpus": 8}, RESIZE), ALL_CORES, "ds.cache()  # behind map(resize)", "behind map(decode)"),
    (unread({"cpus": 8}, RESIZE, known={}), ALL_CORES, "fit into memory?", "MB)"),
    (unread({"cpus": 8}, RESIZE, known={}), ALL_CORES, "ds.cache()  # behind map(decode)", "behind map(resize)"),
    (unread({"cpus": 8}), ALL_CORES, "MB)", "several threads"),
    (guarded(), COMPUTING, "hides its later changes", "__main__"),
    (guarded(machine={"cpus": 8, "cpus_allowed": 8, "system": "Windows"}), COMPUTING, "__main__", "cores are busy"),
    (guarded(framework=TORCH | {"python": "3.14.0"}), COMPUTING, "__main__", "cores are busy"),
    (guarded(framework=TORCH | {"python": "3.13.2"}), COMPUTING, "hides its later changes", "__main__"),
    *(
        (waits(*stages, input_kind=kind, input_workers=0, machine={"cpus": 2}), *host_and_words)
        for kind in ("PyDataset", "generator")
        for stages in ([], [GENERATOR])  # in Keras' own pipeline
        for host_and_words in ((WAITING, "5", "cores are busy"), (COMPUTING, "", "workers = 5"))
    ),
]


@pytest.mark.parametrize("run, host, there, never", SAID)
def test_what_is_said_fits_the_run(run, host, there, never):
    advice = found(run, "input_bound", host)["advice"]
    said = f"{advice['text']} {advice['code']}"
    assert there in said and never not in said, said


SERIAL = ("generator", "Generator", 15.0, 1.0, "py_function")
MAPPED = ("map(decode)", "Map", 30.0, 1.0, "sequential")
CONTAINER = {"cpus": 64, "cpus_allowed": 16, "cpu_quota": 4.0}
# run, host, how much faster the promise says it gets at most
GAINS = [
    # 40 ms a step, 80 ms of work on one thread, a batch needed every 10 ms.
    (waits(DECODE, machine={"cpus": 4}), COMPUTING, 2.0),
    (waits(DECODE, machine={"cpus": 64}), COMPUTING, 4.0),
    (waits(DECODE, machine=CONTAINER), COMPUTING, 2.0),  # of four cores
    # A batch each 45 ms; behind the map's threads a generator makes one after the other.
    (waits((*SERIAL[:2], 0.1, *SERIAL[3:]), MAPPED, PREFETCH, wait_ms=34, machine={"cpus": 2}), WAITING, 4.4),
    (waits(SERIAL, MAPPED, PREFETCH, wait_ms=35, machine={"cpus": 2}), WAITING, 3.0),
    # 30 ms of one core for a batch each 40 ms: of two cores none is free.
    (dataset(machine={"cpus": 2}, gpus=[]), busy(90, 50), 1.0),
    (waits(**TWO_CORES, **DATALOADER, **LOOP), busy(75, 77.5), 1.0),  # of two cores another program has 0.8
    (dataset(wait_ms=40), busy(48, 10), 50 / 14),  # of 30 ms a batch 14 compute under Python's one lock
]


@pytest.mark.parametrize("run, host, gain", GAINS)
def test_no_more_is_promised_than_cores_stages_and_python_let_through(run, host, gain):
    finding = found(run, "input_bound", host)
    assert finding["evidence"]["faster_up_to"] == pytest.approx(gain, rel=0.06)
    assert bool(finding["advice"]["code"]) == (gain > 1)


@pytest.mark.parametrize(
    "run, host, question",
    [
        (waits(PYTHON, machine={"cpus": 8}), WAITING, "May several threads call decode at the same time?"),
        (waits(TUNED, **ONCE_AND_KEPT), ALL_CORES, ""),
        (
            waits(TUNED, RESIZE, epochs=10, machine=MEMORY, **SMALL),
            ALL_CORES,
            "Does decode return the same in every epoch, without random numbers, and does all of it fit",
        ),
        (waits(*QUICKER, **AUGMENTED), ALL_CORES, "keep its result before map(augment), which stays random"),
        (waits(**PYDATASET | THREADS), WAITING, "(Those that read one HDF5 file wait for each other.)"),
        (waits(MAP, FILES), WAITING, "Does each element name a file, and are there several?"),
    ],
)
def test_what_was_not_seen_is_asked(run, host, question):
    advice = found(run, "input_bound", host)["advice"]
    assert question in advice["text"] and advice["question"] == bool(question)


TABLES = [
    *tf_data.REMEDIES,
    *loaders.DATA_LOADER,
    *loaders.PY_DATASET,
    *loaders.GENERATOR,
    *loaders.GRAIN,
    *inputs.LOOP,
    *inputs.SET_UP,
    *host.VALIDATION_DATA,
    *host.VALIDATION_LESS,
    *callbacks.EPOCH_WORK,
    *callbacks.STEP_WORK,
]
LIMITS = [*tf_data.LIMITS, *loaders.LIMITS, *inputs.LOOP_LIMITS, *host.VALIDATION_LIMITS]


def test_a_limit_has_no_code_and_promises_nothing():
    assert [entry.name for entry in LIMITS if entry.code or entry.remedy or entry.asks] == []


def test_full_cores_are_the_limit_and_no_worker_is_added():
    finding = found(waits(**GRAIN | {"input_workers": 8}), "input_bound", ALL_CORES)
    assert finding["advice"]["text"].startswith("All 8 cores are busy: a batch arrives every 40 ms")
    assert finding["advice"]["code"] == "" and finding["saves_s"] == 0
    assert finding["evidence"]["held_up_by"] == "all 8 cores are busy"


@pytest.mark.parametrize("batches, share", [(400, 3 / 4), (800, 1 / 2), (1600, 0)])
def test_a_cache_saves_nothing_in_the_first_pass_however_short_the_epochs(batches, share):
    """Four epochs of 400 steps, which `steps_per_epoch` cuts out of more batches."""
    finding = found(waits(FILTER, epochs=4, machine=MEMORY, input_batches=batches, **SMALL), "input_bound")
    assert finding["saves_s"] == pytest.approx(finding["lost_s"] * share, rel=0.03)
    assert ("cache" in finding["advice"]["code"]) == bool(share)


def test_batches_of_an_input_that_repeats_are_those_of_all_its_passes():
    """`ds.repeat(4)` has 1,600 batches, and a cache before it saves three passes of four."""
    run = waits(FILTER, REPEAT, epochs=4, machine=MEMORY, input_batches=1600, **SMALL)
    assert "cache()" in found(run, "input_bound")["advice"]["code"]


@pytest.mark.parametrize(("stages", "is_kept"), [([FILTER], False), ([FILTER, REPEAT], True)])
def test_a_cache_of_an_input_without_an_end_never_fills(stages, is_kept):
    """Seen: a generator that begins again by itself, from which all epochs take their steps."""
    run = waits(*stages, epochs=4, machine=MEMORY, input_one_iterator=True, **SMALL)
    assert ("cache()" in found(run, "input_bound")["advice"]["code"]) == is_kept


def test_a_cache_holds_all_batches_however_short_the_epochs():
    """400 batches of 100 kB fit into 100 MB, 1,000 do not."""
    machine = MEMORY | {"memory_total_bytes": 100_000_000}
    few, many = (
        found(waits(FILTER, epochs=10, machine=machine, input_batches=count, **SMALL), "input_bound")["advice"]
        for count in (400, 1_000)
    )
    assert "fits into memory (40 MB)" in few["text"] and "cache()" in few["code"]
    assert "cache()" not in many["code"]


def test_workers_make_all_but_the_first_batch_of_a_pass_ahead_however_short_the_epochs():
    whole, cut, short = (
        found(loader(steps_per_epoch=steps, input_batches=batches), "input_bound", WAITING)["saves_s"]
        for steps, batches in ((400, 400), (10, 400), (10, 10))
    )
    assert whole == cut > 1.05 * short


CACHED = (("map(load)", "ParallelMapV2", 60.0, 2.0, "autotuned"), ("cache", "MemoryCache", 0.0, 1.0, ""))
BEHIND = ("map(augment)", "ParallelMapV2", 50.0, 2.0, "autotuned")


@pytest.mark.parametrize(
    "maps, told, code",
    [({}, "without random numbers, and do its results fit", "ds.map(augment, "), (RANDOM, "layers", None)],
)
def test_what_is_cached_is_blamed_for_the_first_epoch_alone(maps, told, code):
    """Later epochs wait for what comes after the cache; another cache is no help."""
    run = waits(*CACHED, BEHIND, epochs=5, **maps)
    finding = found(run, "input_bound", ALL_CORES)
    assert finding["evidence"]["slowest_stage"] == "map(augment)"
    assert "after the cache" in finding["advice"]["text"] and told in finding["advice"]["text"]
    assert finding["advice"]["code"].startswith(f"ds = {code}") if code else not finding["advice"]["code"]
    first = found(waits(*CACHED, BEHIND), "input_bound", ALL_CORES)
    assert first["evidence"]["slowest_stage"] == "map(load)"
    assert "cache()" not in first["advice"]["code"]


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
def test_storing_what_a_dataset_makes_is_a_line_that_can_be_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for given, makes in (
        ({}, "D.__getitem__"),
        ({"input_iterable": True}, "D.__iter__"),
        ({"input_iterable": True, "input_shards": 100}, "D"),  # streaming's calls the user's `__getitem__`
    ):
        facts = DATALOADER | {"input_workers": 8, "input_class": "D"} | given
        host = {"process_cpu_pct": 30, "cpu_pct": 95}
        run = waits(framework=TORCH, epochs=3, **facts)
        advice = found(run, "input_bound", host)["advice"]
        dataset = [(torch.ones(3) * i, i) for i in range(4)]
        after = apply(advice["code"], torch=torch, dataset=dataset)["dataset"]
        assert [label for _, label in after] == [0, 1, 2, 3]
        loader = torch.utils.data.DataLoader(after, batch_size=2)
        assert [len(labels) for _, labels in loader] == [2, 2]
        assert f"Does {makes} return the same item in every epoch" in what_to_do(advice)


@pytest.mark.parametrize("workers, shards, said", [(0, None, 4), (0, 3, 3), (2, 3, 3), (0, 1, None), (4, 4, None)])
def test_no_worker_process_is_advised_that_would_have_no_shard(workers, shards, said):
    """webdataset raises for such a worker, datasets stops it; both share out shards without the program's help."""
    facts = DATALOADER | {"input_iterable": True, "input_workers": workers, "input_shards": shards}
    advice = found(waits(framework=TORCH, machine={"cpus": 64}, **facts), "input_bound", busy(30, 12))["advice"]
    if said is None:
        assert "num_workers" not in advice["code"] and "more workers need more of them" in advice["text"]
    else:
        assert f"num_workers={said}," in advice["code"]
        assert ("get_worker_info" in advice["text"]) == (shards is None)


def test_more_workers_promise_nothing_of_the_handing_over():
    runs = [handed(ms, wait_ms=10, step_ms=5, machine={"cpus": 8}, input_ready_pct=40.0) for ms in (0.1, 4.0)]
    alone, beside = (found(run, "input_bound", busy(30, 12))["evidence"]["faster_up_to"] for run in runs)
    assert 1 < beside < alone


@pytest.mark.parametrize("ms, said", [(0.77, "0.8 ms"), (0.04, "under 0.1 ms"), (3.4, "3.4 ms")])
def test_short_times_are_said(ms, said):
    assert brief(ms) == said


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


@pytest.mark.parametrize("workers, in_turns", [(0, True), (2, False)])
def test_an_input_made_in_turns_with_the_steps_takes_no_core_from_them(workers, in_turns):
    """Every fourth step is quick, the others lack a core: a loop's own input does not compute beside them."""
    run = run_of(
        gpus=[], **{**DATALOADER, "input_workers": workers}, framework=TORCH, machine=MEMORY | {"cpus": 2}, epochs=4
    )
    for _ in range(4):
        with run.epoch():
            run.steps(100, step_ms=np.tile([4.0, 12.0, 12.0, 12.0], 25), wait_ms=20)
    finding = found(run, "input_bound", ALL_CORES)
    assert "make them once" in finding["advice"]["text"]
    assert (finding["saves_range_s"][1] <= finding["lost_s"]) == in_turns


def sampled(cpu_ms: float, count: int = 32, queued_ms: float = 0.0, **facts) -> Generated:
    """A loader in the loop that waits 30 ms a batch; getting a sample computes `cpu_ms` of it."""
    name = facts.pop("name", "Images.__getitem__")
    get = {"name": name, "calls": 4000 * count, "timed": 800, "wall_ms": cpu_ms + queued_ms, "cpu_ms": cpu_ms}
    return loader(input_calls=[get | {"queued_ms": queued_ms}], gpus=[], machine={"cpus": 1}, epochs=10, **facts)


WHOLE = "sampler=loader.batch_sampler, batch_size=None)"


@pytest.mark.parametrize(
    "run, question, code",
    [
        (sampled(0.004, input_class="TensorDataset", input_collate=""), "", WHOLE),
        (sampled(2.0, 1, name="Subset.__getitems__", input_class="TensorDataset", input_collate=""), "", WHOLE),
        (sampled(0.004, input_collate=""), "only index tensors or arrays", WHOLE),
        (sampled(0.004, queued_ms=0.9, input_collate=""), "only index tensors or arrays", WHOLE),  # others had the core
        (sampled(0.9, input_collate=""), "return the same item in every epoch", "torch.save("),
        (sampled(0.004, 1, input_class="TensorDataset", input_collate=""), "", ""),  # whole batches already
        (
            sampled(0.004, input_class="TensorDataset", input_collate="pad"),
            "do to each sample the same",
            "prepare(sample)",
        ),
        (sampled(0.004, input_class="list", input_collate="pad"), "do to each sample the same", "prepare(sample)"),
        (sampled(0.9, input_collate="pad"), "return the same item in every epoch", "torch.save("),
    ],
)
def test_samples_that_are_there_are_indexed_at_once_and_not_made_again(run, question, code):
    advice = found(run, "input_bound", busy(95, 99))["advice"]
    assert question in advice["text"] and bool(question) == advice["question"]
    assert code in advice["code"] and bool(code) == bool(advice["code"])
    joined = run.facts["fit"]["input_collate"] and not code
    assert bool(joined) == ("pad joins the samples in the loop" in advice["text"])


def test_samples_that_are_made_once_still_have_to_be_joined():
    all_of_it, a_half = (found(sampled(ms, input_collate="pad"), "input_bound", busy(95, 99)) for ms in (0.9, 0.6))
    assert a_half["saves_range_s"][1] < 0.8 * all_of_it["saves_range_s"][1]


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


@pytest.mark.parametrize(("own", "method"), [(3, "thread"), (90, "process")])
def test_workers_of_torchdata_s_nodes_are_asked_for_and_no_data_loader(own, method):
    facts = {"loop": "custom", "input_kind": "torchdata nodes", "input_workers": 0}
    run = waits(framework=TORCH, machine={"cpus": 8, "cpus_allowed": 8}, **facts)
    advice = found(run, "input_bound", {"process_cpu_pct": own, "cpu_pct": 12})["advice"]
    assert advice["question"] and f'method="{method}"' in advice["code"] and "ParallelMapper" in advice["code"]
    assert "DataLoader" not in advice["text"] + advice["code"]


@pytest.mark.parametrize(
    "wait_ms, queued_pct, gpus, is_told",
    [
        (1.2, 28, [], False),
        (0.9, 26, [], False),  # a compiled step, batches in memory
        (1.5, 40, [], False),
        (1.2, 2, [], True),
        (4.0, 14, [], True),  # longer than it had no core
        (1.2, None, [], True),
        (1.2, 28, None, True),  # its steps compute on a GPU
    ],
)
def test_a_wait_for_a_core_beside_stages_that_keep_up_is_none_for_the_input(wait_ms, queued_pct, gpus, is_told):
    """Seen: two healthy programs whose stages take little of a step, told that some batches come late."""
    run = run_of(gpus=gpus, machine={"cpus": 2, "cpus_allowed": 2})
    for _ in range(2):
        run.steps(400, step_ms=10, wait_ms=wait_ms)
        run.reading(("map(scale)", "ParallelMapV2", 0.3, 1.0, "autotuned"), PREFETCH, batches=400)
    times = np.arange(START_NS, run.now, 10**9)
    host = {"process_cpu_pct": 150, "children_cpu_pct": 0, "cpu_pct": 76, "threads_queued_pct": queued_pct}
    columns = {name: np.full(len(times), float(value)) for name, value in host.items() if value is not None}
    samples = run.samples() | {"host": {"time_ns": times} | columns}
    assert bool(run.findings("input_bound", samples=samples)) == is_told
