"""Advice about inputs fits the run: the facts decide which line is printed."""

import pytest
from advised import apply
from advised_runs import (
    ALL_CORES,
    BATCH,
    COMPUTING,
    DATALOADER,
    DECODE,
    FILTER,
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

from gpu_util_callback.diagnosis.advice.input import brief
from gpu_util_callback.words import what_to_do

# name, run, cause, host, in the code, never in the code
GENERATOR = ("generator", "Generator", 40.0, 1.0, "py_function")
GRAIN = {"framework": JAX, "input_kind": "grain", "input_class": "DataLoader", "input_workers": 0}
PREFETCH = ("prefetch", "Prefetch", 0.1, 1.0, "")
INPUTS = [
    ("fixed parallelism", waits(DECODE), None, "num_parallel_calls=tf.data.AUTOTUNE", "prefetch"),
    ("its name is printed", waits(DECODE), COMPUTING, "ds.map(decode, ", "fn"),
    ("waiting on more than the cores", waits(DECODE, machine={"cpus": 2}), WAITING,
     "private_threadpool_size = 12", "cache"),
    ("waiting on fewer than the cores", waits(PYTHON, machine={"cpus": 64}), WAITING,
     "ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE", "threadpool"),
    ("Python that computes", waits(PYTHON), COMPUTING, "_tf, num_parallel_calls", "threadpool"),
    ("Python that computes on many threads", waits(("map(decode)", "ParallelMapV2", 240.0, 8.0,
     "py_function,autotuned,stateful")), {"process_cpu_pct": 105, "cpu_pct": 20},
     "_tf, num_parallel_calls", "threadpool"),
    ("Python that waits on many threads", waits(("map(decode)", "ParallelMapV2", 240.0, 8.0,
     "py_function,autotuned,stateful")), WAITING, "private_threadpool_size = 32", "without"),
    ("parallel already, one epoch", waits(TUNED), ALL_CORES, "ds.save(", "cache"),
    ("parallel already, ten epochs", waits(TUNED, epochs=10), ALL_CORES, "ds.cache()", "AUTOTUNE"),
    ("fixed at all cores, one epoch", waits(("map(f)", "ParallelMapV2", 240.0, 8.0,
     "fixed_parallelism")), ALL_CORES, "ds.save(", "AUTOTUNE"),
    ("one filter, one epoch", waits(FILTER), None, "ds.save(", "cache"),
    ("one filter, five epochs", waits(FILTER, epochs=5), None, "ds.cache()", "map"),
    ("records of one file", waits(READER), None, "num_parallel_reads=8", "cache"),
    ("records of several files", waits(("TFRecordDataset", "TFRecord", 40.0, 1.0, ""),
     ("flat_map", "FlatMap", 0.1, 1.0, "")), None, "tf.data.TFRecordDataset(filenames, num_par",
     "interleave"),
    ("files opened by a function", waits(("map", "Map", 40.0, 1.0, ""),
     ("interleave(open_file)", "Interleave", 0.1, 1.0, "sequential")), None,
     "files.interleave(open_file, cycle_length=8, num_parallel_calls=8", "your_function"),
    ("batching", waits(BATCH), COMPUTING, "ds.batch(32, num_parallel_calls=tf.data.AUTOTUNE)",
     "cache"),
    ("autotuning off", waits(input_autotune=False, epochs=5), None,
     "options.autotune.enabled = True", "cache"),
    ("stages unknown, one epoch", waits(), None, "ds.save(", "prefetch"),
    ("a lambda", waits(("map(lambda)", *PYTHON[1:])), WAITING, "ds.map(your_function, ", "lambda"),
    ("a JAX loop that times its fetches", waits(framework=JAX, input_kind=None, **LOOP), None,
     "class Pooled", "ds."),
    ("a TensorFlow loop that times short fetches", waits(input_kind=None, epochs=5, wait_ms=8,
     **LOOP), None, "class Ahead", "cache"),
    ("a torch loop that times its fetches", waits(framework=TORCH, input_kind=None, **LOOP), None,
     "torch.utils.data.DataLoader(", "ds."),
    ("an imported torch trace", waits(framework=TORCH, input_kind=None), None, "num_workers=",
     "ds."),
    ("loader without workers", waits(framework=TORCH, **DATALOADER, **LOOP), None,
     "DataLoader(dataset, ..., num_workers=4, persistent_workers=True, pin_memory=True)", "ds."),
    ("loader without a GPU", waits(framework=TORCH, gpus=[], **DATALOADER, **LOOP), None,
     "num_workers=4", "pin_memory"),
    ("pinned already", waits(framework=TORCH, input_pin_memory=True, **DATALOADER), None,
     "num_workers=4", "pin_memory"),
    ("loader with two workers of 8", waits(framework=TORCH, **DATALOADER | {"input_workers": 2}),
     None, "num_workers=8", "AUTOTUNE"),
    ("loader with all workers", waits(framework=TORCH, **DATALOADER | {"input_workers": 8}),
     None, 'dataset = torch.load("data.pt"', "timeit"),
    ("loader under Keras on JAX", waits(framework=JAX, **DATALOADER), None, "num_workers=", "ds."),
    ("dataset that waits", waits(framework=JAX, **PYDATASET), WAITING, "dataset.workers = 4",
     "multiprocessing"),
    ("dataset that computes", waits(framework=JAX, gpus=[], **PYDATASET), COMPUTING,
     "dataset.use_multiprocessing = True", "ds."),
    ("dataset that computes beside a GPU", waits(framework=JAX, **PYDATASET), COMPUTING,
     'get_context("spawn")', "use_multiprocessing"),
    ("dataset on threads that compute", waits(**PYDATASET | {"input_workers": 4,
     "input_processes": False}), COMPUTING, "use_multiprocessing = True", "AUTOTUNE"),
    ("Sequence of tf_keras", waits(framework=TF_KERAS, **PYDATASET), COMPUTING,
     "model.fit(..., workers=", "dataset."),
    ("generator on torch", waits(framework=KERAS_TORCH, input_kind="generator"), None,
     "class Batches(keras.utils.PyDataset)", "DataLoader"),
    ("fast generator in a loop on JAX", waits(framework=JAX, input_kind="generator",
     input_class="read", wait_ms=8, **LOOP), None, "Ahead(lambda: read(...))", "keras"),
    ("slow generator in a loop on JAX", waits(framework=JAX, input_kind="generator", **LOOP),
     WAITING, "ThreadPoolExecutor(4)", "spawn"),
    ("generator that computes in a loop on JAX", waits(framework=JAX, input_kind="generator",
     **LOOP), COMPUTING, "Pooled(make_batch, number_of_batches)", "ThreadPool"),
    ("generator behind tf.data, waiting", waits(GENERATOR, PREFETCH, **LOOP), WAITING,
     "interleave(part, cycle_length=6", "Ahead"),
    ("generator behind tf.data, computing", waits(GENERATOR, PREFETCH, **LOOP), COMPUTING,
     "ds.map(your_function", "Ahead"),
    ("tf.data that makes nothing ahead", waits(("map(decode)", "Map", 8.0, 1.0, "sequential"),
     wait_ms=8, **LOOP), None, "ds.prefetch(", "num_parallel"),
    ("generator in a loop on torch", waits(framework=TORCH, input_kind="generator", **LOOP), None,
     "torch.utils.data.DataLoader(", "keras"),
    ("arrays on TensorFlow", waits(input_kind="numpy"), None, 'astype("uint8")', "float16"),
    ("arrays on JAX", waits(framework=JAX, input_kind="numpy"), None, "x[i * 32 : (i + 1) * 32]",
     "ds."),
    ("tf.data on torch", waits(DECODE, framework=KERAS_TORCH), None, "tf.data.AUTOTUNE",
     "DataLoader"),
    ("grain", waits(framework=JAX, input_kind="grain"), None, "mp_prefetch", "tf.data"),
    ("a Grain DataLoader", waits(**GRAIN), COMPUTING, "worker_count=4)", "mp_prefetch"),
    ("a Grain DataLoader that waits", waits(wait_ms=90, **GRAIN, machine={"cpus": 2}), WAITING,
     "worker_count=11)", "mp_prefetch"),
    ("a MapDataset of Grain", waits(**GRAIN | {"input_class": "MapDataset"}), COMPUTING,
     "dataset.to_iter_dataset().mp_prefetch(", "worker_count"),
    ("an IterDataset with too few workers", waits(**GRAIN | {"input_class": "IterDataset",
     "input_workers": 2}), ALL_CORES, "dataset.mp_prefetch(grain.multiprocessing."
     "MultiprocessingOptions(num_workers=8))", "to_iter"),
]  # fmt: skip
CASES = [pytest.param(*rest, id=name) for name, *rest in INPUTS]


@pytest.mark.parametrize("run, host, there, never", CASES)
def test_the_line_fits_the_run(run, host, there, never):
    check_line(run, "input_bound", host, there, never)


def test_as_many_workers_of_grain_as_cores_are_not_told_to_be_more():
    advice = found(waits(**GRAIN | {"input_workers": 8}), "input_bound", ALL_CORES)["advice"]
    assert "as many as this machine can use" in advice["text"] and advice["code"] == ""


def test_what_the_cache_saves_is_what_later_epochs_would_wait():
    for epochs in (2, 4, 10):
        finding = found(waits(FILTER, epochs=epochs), "input_bound")
        assert finding["saves_s"] == pytest.approx(finding["lost_s"] * (1 - 1 / epochs), rel=0.03)


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
    run = waits(FILTER, epochs=2)
    verdict = run.diagnose()["verdict"]
    assert "up to 1.6× faster" in verdict, (
        verdict
    )  # 40 ms a step, 30 of them waits, half of them kept


CACHED = (
    ("map(load)", "ParallelMapV2", 60.0, 2.0, "autotuned"), ("cache", "MemoryCache", 0.0, 1.0, ""),
)  # fmt: skip
BEHIND = ("map(augment)", "ParallelMapV2", 50.0, 2.0, "autotuned")


@pytest.mark.parametrize("flags, told, code", [
    ("autotuned", "what is not random", "ds.map(augment, "), ("autotuned,stateful", "layers", None),
])  # fmt: skip
def test_what_is_cached_is_blamed_for_the_first_epoch_alone(flags, told, code):
    """Later epochs wait for what comes after the cache; another cache is no help."""
    run = waits(*CACHED, (*BEHIND[:4], flags), epochs=5)
    finding = found(run, "input_bound", ALL_CORES)
    assert finding["evidence"]["slowest_stage"] == "map(augment)"
    assert "after the cache" in finding["advice"]["text"] and told in finding["advice"]["text"]
    assert (
        finding["advice"]["code"].startswith(f"ds = {code}")
        if code
        else not finding["advice"]["code"]
    )
    first = found(waits(*CACHED, BEHIND), "input_bound", ALL_CORES)
    assert first["evidence"]["slowest_stage"] == "map(load)"
    assert "cache()" not in first["advice"]["code"]


@pytest.mark.parametrize("kind", ["PyDataset", "generator"])
def test_threads_that_wait_may_be_more_than_cores(kind):
    facts = {"input_kind": kind, "input_workers": 0, "machine": {"cpus": 2}}
    run = waits(**facts)
    assert "workers = 5" in found(run, "input_bound", WAITING)["advice"]["code"].replace(
        "s=", "s = "
    )
    assert "workers = 2" in found(run, "input_bound", COMPUTING)["advice"]["code"].replace(
        "s=", "s = "
    )


@pytest.mark.parametrize("cpus, cpu_pct, told", [
    (2, 95, "as many as this machine can use"), (2, 20, "workers = 16"), (16, 30, "workers = 16"),
])  # fmt: skip
def test_processes_that_have_all_cores_are_not_to_be_more(cpus, cpu_pct, told):
    facts = PYDATASET | {"input_workers": 4, "input_processes": True, "machine": {"cpus": cpus}}
    host = {"process_cpu_pct": 30, "cpu_pct": cpu_pct}
    advice = found(waits(**facts), "input_bound", host)["advice"]
    assert told in " ".join(advice.values())


def test_batches_that_are_made_once_stay_the_same():
    keras = pytest.importorskip("keras")
    facts = PYDATASET | {"input_workers": 4, "input_processes": True, "machine": {"cpus": 2}}
    host = {"process_cpu_pct": 30, "cpu_pct": 95}
    code = found(waits(**facts), "input_bound", host)["advice"]["code"]
    dataset = apply(code, keras=keras, dataset=[(1, 2), (3, 4)])["dataset"]
    assert [dataset[i] for i in range(len(dataset))] == [(1, 2), (3, 4)]


def test_a_loop_that_times_its_fetches_is_told_of_no_loader_that_it_may_not_have():
    run = waits(framework=TORCH, input_kind=None, **LOOP)
    assert "The DataLoader makes" not in found(run, "input_bound")["advice"]["text"]


def test_storing_what_a_dataset_makes_is_a_line_that_can_be_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for given in ({}, {"input_iterable": True}):
        facts = DATALOADER | {"input_workers": 8} | given
        advice = found(waits(framework=TORCH, **facts), "input_bound")["advice"]
        dataset = [(torch.ones(3) * i, i) for i in range(4)]
        after = apply(advice["code"], torch=torch, dataset=dataset)["dataset"]
        assert [label for _, label in after] == [0, 1, 2, 3]
        loader = torch.utils.data.DataLoader(after, batch_size=2)
        assert [len(labels) for _, labels in loader] == [2, 2]
        assert what_to_do(advice).startswith("torch.save(")


def test_one_worker_is_singular():
    one = waits(framework=TORCH, **DATALOADER | {"input_workers": 1})
    assert (
        "1 worker process of the DataLoader is too few"
        in found(one, "input_bound")["advice"]["text"]
    )


@pytest.mark.parametrize("wait_ms, told", [(2.5, True), (30.0, False)])
def test_waits_as_short_as_taking_a_finished_batch_are_said_to_be_perhaps_that(wait_ms, told):
    facts = DATALOADER | {"input_workers": 2}
    run = waits(framework=TORCH, wait_ms=wait_ms, step_ms=8, machine={"cpus": 2}, **facts)
    assert ("handing over" in found(run, "input_bound")["advice"]["text"]) == told


@pytest.mark.parametrize("process_cpu_pct, cpu_pct, told, never", [
    (20, 40, "It mostly waits", "computes in Python"),
    (52, 40, "Parallel calls help if it waits", "computes in Python"),  # the training's CPU time?
    (52, 95, "computes in Python", "waits"),  # as far as it gets a core
    (130, 40, "computes in Python", "waits"),
])  # fmt: skip
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


LOADER = DATALOADER | {"input_workers": 2, "input_pin_memory": True}


@pytest.mark.parametrize("handed_ms, more, told, never", [
    (2.3, {}, "batch_size=64", "too few"),
    (2.3, {"input_pin_memory": False}, "pin_memory=True", "batch_size"),
    (0.4, {}, "num_workers=4", "handing"),  # less than half of the wait
    (None, {}, "num_workers=4", "not help"),  # hardly a batch was finished
])  # fmt: skip
def test_finished_batches_need_no_more_workers(handed_ms, more, told, never):
    facts = LOADER | more | {"input_ready_pct": 98.2, "input_handover_ms": handed_ms}
    run = waits(framework=TORCH, wait_ms=2.5, step_ms=8, machine={"cpus": 4}, **facts)
    advice = found(run, "input_bound")["advice"]
    words = " ".join((advice["text"], advice["code"]))
    assert told in words and never not in words
    assert ("98 % of the batches were finished" in words) == (handed_ms == 2.3)


def test_more_workers_promise_nothing_of_the_handing_over():
    findings = [
        found(waits(framework=TORCH, wait_ms=10, step_ms=5, **LOADER | {
            "input_ready_pct": 40.0, "input_handover_ms": handed_ms,
        }), "input_bound")
        for handed_ms in (None, 4.0)
    ]  # fmt: skip
    alone, handed = (finding["evidence"]["faster_up_to"] for finding in findings)
    assert 1 < handed < alone


def test_where_it_is_known_that_batches_come_late_nothing_is_said_of_handing_over():
    facts = LOADER | {"input_ready_pct": 3.0, "input_handover_ms": None}
    run = waits(framework=TORCH, wait_ms=2.5, step_ms=8, machine={"cpus": 2}, **facts)
    assert "handing over" not in found(run, "input_bound")["advice"]["text"]


@pytest.mark.parametrize("workers, cpu_pct, told", [
    (8, 20, "num_workers=16"),  # all cores have a worker, and idle: it waits
    (8, 70, "torch.save"),
    (2, 20, "num_workers=8"),  # two of eight cores compute
])  # fmt: skip
def test_workers_that_wait_may_be_more_than_cores(workers, cpu_pct, told):
    run = waits(framework=TORCH, **DATALOADER | {"input_workers": workers})
    host = {"process_cpu_pct": 30, "cpu_pct": cpu_pct}
    assert told in found(run, "input_bound", host)["advice"]["code"]


@pytest.mark.parametrize("stage, told", [
    (("batch", "Batch", 38.0, 1.0, ""), "Putting a batch together takes 38 ms, but the model"),
    (("TFRecordDataset", "TFRecord", 38.0, 1.0, ""), "every 10 ms: it reads one file at a time"),
    (READER, "it reads one file at a time"),
])  # fmt: skip
def test_nothing_is_named_twice_in_a_sentence(stage, told):
    text = found(waits(stage), "input_bound", COMPUTING)["advice"]["text"]
    assert told in text and text.count("Dataset") <= 1


@pytest.mark.parametrize("ms, said", [(0.77, "0.8 ms"), (0.04, "under 0.1 ms"), (3.4, "3.4 ms")])
def test_short_times_are_said(ms, said):
    assert brief(ms) == said


MAPPED = ("map(decode)", "Map", 30.0, 1.0, "py_function,sequential")


@pytest.mark.parametrize("serial_ms, gain", [(0.1, 4.4), (15.0, 3.0), (30.0, 2.0)])
def test_threads_promise_no_more_than_the_stages_beside_them_let_through(serial_ms, gain):
    """A batch each 45 or 60 ms; behind the map's threads a generator makes one after the other."""
    source = ("generator", "Generator", serial_ms, 1.0, "py_function")
    arrives = max(30.0 + serial_ms, 44.0)
    run = waits(source, MAPPED, PREFETCH, wait_ms=arrives - 10, machine={"cpus": 2})
    finding = found(run, "input_bound", WAITING)
    assert finding["evidence"]["slowest_stage"] in ("map(decode)", "generator")
    assert finding["evidence"]["faster_up_to"] == pytest.approx(gain, rel=0.06)


def test_processes_promise_no_more_than_the_cores_let_through():
    """30 ms of one core for a batch each 40 ms: two cores make one each 15 ms, sixteen in time."""
    gains = [
        found(waits(framework=JAX, machine={"cpus": cpus}, gpus=[], **PYDATASET), "input_bound",
              {"process_cpu_pct": 90, "cpu_pct": 50})["evidence"]["faster_up_to"]
        for cpus in (2, 16)
    ]  # fmt: skip
    assert gains == [pytest.approx(40 / 18, rel=0.06), pytest.approx(4.0, rel=0.06)]


def test_threads_promise_no_more_than_python_lets_through():
    """Making a batch takes 30 ms, of which 14 compute under Python's one lock."""
    host = {"process_cpu_pct": 48, "cpu_pct": 10}
    run = waits(framework=JAX, input_kind="generator", wait_ms=40, **LOOP)
    finding = found(run, "input_bound", host)
    assert finding["evidence"]["faster_up_to"] == pytest.approx(50 / 14, rel=0.06)


@pytest.mark.parametrize("kind", ["Ahead", "Pooled"])
def test_who_works_ahead_is_not_asked_to_again(kind):
    code = found(waits(framework=JAX, input_kind=kind, wait_ms=8, **LOOP), "input_bound", WAITING)
    assert "class Ahead" not in code["advice"]["code"]


@pytest.mark.parametrize("process_cpu_pct, waiting", [(10, True), (90, False)])
def test_the_code_for_loops_survives_epochs(process_cpu_pct, waiting):
    host = {"process_cpu_pct": process_cpu_pct, "cpu_pct": 50}
    slow = waits(framework=JAX, input_kind="generator", **LOOP)
    code = found(slow, "input_bound", host)["advice"]["code"]
    dataset = apply(code, make_batch=abs, number_of_batches=30)["dataset"]
    assert [list(dataset), list(dataset)] == [list(range(30))] * 2
    assert ("Thread" in type(dataset.pool).__name__) == waiting
    dataset.pool.shutdown()
    fast = waits(framework=JAX, input_kind="generator", wait_ms=8, input_class="read", **LOOP)
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
    run = waits(framework=TORCH, machine={"cpus": 2}, gpus=[], **DATALOADER, **LOOP)
    finding = found(run, "input_bound", {"process_cpu_pct": 33, "cpu_pct": cpu_pct})
    assert ("num_workers=4" in finding["advice"]["code"]) == waits_for_files


def test_processes_promise_nothing_of_cores_that_others_have():
    """30 ms of one core for a batch; of two cores another program has 0.8."""
    host = {"process_cpu_pct": 75, "cpu_pct": 77.5}
    run = waits(framework=TORCH, machine={"cpus": 2}, gpus=[], **DATALOADER, **LOOP)
    finding = found(run, "input_bound", host)
    assert finding["evidence"]["faster_up_to"] == pytest.approx(40 / 25, rel=0.06)


def test_calls_that_go_are_no_work_left_for_the_cores():
    """2,000 calls a batch keep both cores busy: on whole batches their work is not to be spread."""
    stages = ("map(scale)", "ParallelMapV2", 74.0, 2.0, ""), ("batch", "BatchV2", 1.0, 1.0, "")
    run = waits(*stages, elements=2000, machine={"cpus": 2}, gpus=[], batch_size=2000)
    finding = found(run, "input_bound", {"process_cpu_pct": 190, "cpu_pct": 99})
    assert "work on whole batches" in finding["advice"]["text"]
    assert finding["evidence"]["faster_up_to"] == pytest.approx(3.7, rel=0.06)


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
    assert finding["evidence"]["faster_up_to"] > 2
