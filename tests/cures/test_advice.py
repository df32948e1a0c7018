"""Advice executed, slow input: the printed code is run, the finding goes, the promise is kept.

The code runs as it was printed, with the user's own names around it (`ds`, `decode`, `model`, …;
see `advised.py`). Times are made by waiting, not by computing, wherever the cause allows: what two
busy cores decide is no truth. All causes, and where each is executed:

| cause | executed in |
| --- | --- |
| input_bound: a map that waits (Python or TensorFlow), fixed or no parallelism | here |
| input_bound: a map that computes in Python | here |
| input_bound: autotuning switched off, and with it prefetching | here |
| input_bound: files read one after the other (interleave, flat_map) | here |
| input_bound: a cheap map called for each element | here |
| input_bound: data made anew in each epoch (cache) | here |
| input_bound: a shuffle that fills its buffer as each epoch begins | here |
| input_bound: generator, tf.data generator, PyDataset without workers | here |
| input_bound: torch DataLoader, PyDataset and generator on JAX and torch, own loops | \
test_advice_backends |
| host_stall: batch and epoch callbacks, checkpoints, progress bar, TensorBoard, validation | \
test_advice_stalls |
| recompilation: TensorFlow under XLA / JAX | test_advice_stalls / test_advice_backends |
| launch_bound: run_eagerly; gpus_unused, contention, throttled (power limit), cpu_fallback, \
memory_limit, small_batch, imbalance of GPUs | test_advice_gpus, over the stand-in driver |
| imbalance of workers | test_advice_gpus |
| input_bound: a DataLoader that starts its workers for each epoch | test_advice_backends |
| input_bound: arrays or a dataset that TensorFlow sets up anew in each epoch | no: it stalls in \
some epochs only (by hand: 13.3 s to 8.6 s, 61 s to 26 s) |
| input_bound: TFRecord files from a slow disk, batching large elements, arrays that are copied | \
no: how fast a disk and memory are is the machine's |
| input_bound: Grain | tests/backends/test_grain.py |
| input_bound: the promise against what ceilings measure | test_advice_backends, gauntlet |
| recompilation of torch.compile | no: it needs a C++ compiler and a minute per shape |
| sync_bound, launch_bound of short kernels, transfer_bound, communication_bound, no_tensor_cores, \
memory_pressure | no: on a CPU the call returns when the work is done, there is no launch, no \
copy, no allocator and no tensor core |
| throttled (heat), gpu_lost, small_model | no: nothing a line of code could change |
"""

import hashlib
import re
import time
from types import SimpleNamespace

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402
from advised import Given, apply, assert_kept, assert_saved, findings, only, paced  # noqa: E402
from timed_fit import Timed, batches, fit, pause, slowly  # noqa: E402

from gpu_util_callback import read_recordings  # noqa: E402
from gpu_util_callback.diagnosis import logdir_report  # noqa: E402

pytestmark = [
    pytest.mark.timed,
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.real_clock("a neighbour may begin or end between the two fits that are compared", reruns=3),
]

STEPS = 50


def waiting_operation(x):
    """Waits without Python, as reading a file inside a graph does."""
    x = pause(x, 90)
    return x, x[:, :1]


def python_function(x):
    return slowly(90)(x)


@pytest.mark.parametrize(
    "decode, parallel",
    [
        (python_function, None),
        pytest.param(python_function, 1, marks=pytest.mark.slow),
        pytest.param(python_function, tf.data.AUTOTUNE, marks=pytest.mark.slow),
        pytest.param(waiting_operation, 1, marks=pytest.mark.slow),
    ],
)
def test_a_stage_that_waits_gets_threads(tmp_path, decode, parallel):
    source = batches(STEPS)
    before = fit(tmp_path / "before", Timed(30), source.map(decode, num_parallel_calls=parallel))
    span = only(before, "input_bound")
    assert span["evidence"]["slowest_stage"] == f"map({decode.__name__})"
    assert "mostly waits" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, ds=source, **{decode.__name__: decode})
    assert_kept(before, fit(tmp_path / "after", Timed(30), names["ds"]), "input_bound")


@pytest.mark.slow
def test_a_stage_that_computes_in_python_is_written_in_tensorflow(tmp_path):
    # Work of about 70 ms that leaves Python's lock alone: else it would slow the step itself, and
    # the gain would be larger than what the waits alone promise.
    block = bytes(1 << 20)
    start = time.perf_counter()
    hashlib.sha256(block).digest()
    times = round(0.07 / (time.perf_counter() - start))

    def compute(value):
        for _ in range(times):
            hashlib.sha256(block).digest()
        return value

    def augment(x):
        x = tf.ensure_shape(tf.numpy_function(compute, [x], tf.float32), (4, 8))
        return x, x[:, :1]

    source = batches(STEPS)
    before = fit(tmp_path / "before", Timed(30), source.map(augment))
    span = only(before, "input_bound")
    assert "computes in Python" in span["advice"]["text"]

    def rewritten(x):  # what the advice asks of the user
        x = tf.cast(x, tf.float32) * 1.0
        return x, x[:, :1]

    after = fit(tmp_path / "after", Timed(30), source.map(rewritten))
    assert not findings(after, "input_bound")
    assert paced(after) < 0.7 * paced(before)  # how fast another's rewriting gets is not promised


@pytest.mark.slow
def test_autotuning_is_switched_on_again(tmp_path):
    options = tf.data.Options()
    options.autotune.enabled = False
    ds = batches(30).map(slowly(80)).with_options(options)
    before = fit(tmp_path / "before", Timed(120), ds)
    span = only(before, "input_bound")
    assert "autotuning is switched off" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, ds=ds)
    assert_kept(before, fit(tmp_path / "after", Timed(120), names["ds"]), "input_bound")


def open_file(name):
    """Three batches, each of which takes a while to arrive."""
    from tensorflow.python.data.experimental.ops import testing

    return batches(3).apply(testing.sleep(75_000))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interleave", "flat_map"])
def test_files_are_read_several_at_a_time(tmp_path, way):
    files = tf.data.Dataset.range(20)  # many, as users have: the last one is read alone
    labelled = lambda x: (x, x[:, :1])  # noqa: E731
    before = fit(tmp_path / "before", Timed(30), getattr(files, way)(open_file).map(labelled))
    span = only(before, "input_bound")
    assert "one file at a time" in span["advice"]["text"]
    names = apply(span["advice"]["code"], tf=tf, files=files, open_file=open_file)
    after = fit(tmp_path / "after", Timed(30), names["ds"].map(labelled))
    assert_kept(before, after, "input_bound")


@pytest.mark.slow
def test_a_cheap_function_works_on_whole_batches(tmp_path):
    def scale(x):
        x = tf.cast(x, tf.float32) / 255.0 - 0.5
        return x, x[..., :1]

    elements = tf.data.Dataset.from_tensors(tf.ones((8,))).repeat(30 * 4096)
    before = fit(tmp_path / "before", Timed(25), elements.map(scale).batch(4096))
    span = only(before, "input_bound")
    assert "work on whole batches" in span["advice"]["text"]
    # Of elements that come one by one nobody knows how many make a batch: the name is the user's.
    names = apply(span["advice"]["code"], tf=tf, ds=elements, scale=scale, batch_size=4096)
    assert_kept(before, fit(tmp_path / "after", Timed(25), names["ds"]), "input_bound")


@pytest.mark.slow
def test_what_every_epoch_makes_anew_is_kept(tmp_path):
    def keep(x, y):
        return tf.ensure_shape(tf.numpy_function(lambda v: bool(nap(v)), [x], tf.bool), ())

    def nap(value):
        time.sleep(0.06)
        return True

    ds = batches(40).map(lambda x: (x, x[:, :1])).filter(keep)
    before = fit(tmp_path / "before", Timed(20), ds, epochs=4)
    spans = findings(before, "input_bound")
    assert {span["evidence"]["slowest_stage"] for span in spans} == {"filter(keep)"}
    names = apply(spans[0]["advice"]["code"], tf=tf, ds=ds)
    after = fit(tmp_path / "after", Timed(20), names["ds"], epochs=4)
    assert_saved(paced(before), paced(after), spans)
    for span in findings(after, "input_bound"):  # the first epoch waits as it did, the others do not
        assert span["end_step"] <= 60


@pytest.mark.slow
def test_a_shuffle_buffer_stays_full_from_one_epoch_into_the_next(tmp_path):
    from tensorflow.python.data.experimental.ops import testing

    count, epochs = 80, 4  # a batch takes less than a step: only the fills are waited for
    source = batches(count).apply(testing.sleep(20_000)).map(lambda x: (x, x[:, :1]))
    before = fit(tmp_path / "before", Timed(30), source.shuffle(count), epochs=epochs)
    spans = findings(before, "input_bound")
    assert spans and all("shuffle fills its buffer" in one["advice"]["text"] for one in spans)
    again = Given(lambda ds, **kwargs: fit(tmp_path / "after", Timed(30), ds, **kwargs), epochs=epochs)
    model = SimpleNamespace(fit=again)
    apply(spans[0]["advice"]["code"], ds=source, buffer_size=count, model=model)
    assert_kept(before, again.result, "input_bound")


class Batches(keras.utils.PyDataset):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return make_batch(index)


def make_batch(index):
    time.sleep(0.06)
    return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")


def test_a_pydataset_gets_workers(tmp_path):
    before = fit(tmp_path / "before", Timed(30), Batches())
    span = only(before, "input_bound")
    assert "Batches makes one batch at a time" in span["advice"]["text"]
    names = apply(span["advice"]["code"], dataset=Batches())
    assert_kept(before, fit(tmp_path / "so far best", Timed(30), names["dataset"]), "input_bound")
    # The next run of the job, whatever its folder is called, tells what became of the promise.
    first, second = logdir_report(read_recordings(tmp_path))["runs"]
    assert first["script"] and first["since"] is None
    assert second["since"]["run"] == "before" and second["since"]["gone"] == ["input_bound"]
    assert second["since"]["got"] == pytest.approx(second["since"]["promised_up_to"], rel=0.2)


@pytest.mark.slow
def test_a_generator_becomes_a_pydataset(tmp_path):
    def endless():
        while True:
            yield make_batch(0)

    before = fit(tmp_path / "before", Timed(30), endless(), steps_per_epoch=STEPS)
    span = only(before, "input_bound")
    assert "one batch at a time" in span["advice"]["text"]
    names = apply(span["advice"]["code"], keras=keras, make_batch=make_batch, number_of_batches=STEPS)
    assert_kept(before, fit(tmp_path / "after", Timed(30), names["dataset"]), "input_bound")


@pytest.mark.slow
@pytest.mark.parametrize("mapped_ms", [0, 90])
def test_a_generator_behind_tf_data_is_split(tmp_path, mapped_ms):
    """The stage behind it is promised no more than the generator lets through."""

    def read(part=0, parts=1):
        for _ in range(part, STEPS, parts):
            yield make_batch(0)

    def generators(given, **kwargs):
        return tf.data.Dataset.from_generator(given, output_signature=signature, **kwargs)

    signature = (tf.TensorSpec((4, 8)), tf.TensorSpec((4, 1)))
    source = generators(read)
    ds = source.map(lambda x, y: slowly(mapped_ms)(x)) if mapped_ms else source
    before = fit(tmp_path / "before", Timed(30), ds.prefetch(2))
    span = only(before, "input_bound")
    code = span["advice"]["code"]
    if mapped_ms:
        assert "num_parallel_calls" in code
        names = apply(code, tf=tf, ds=source, your_function=lambda x, y: slowly(mapped_ms)(x))
    else:
        parts = int(re.search(r"range\((\d+)\)", code)[1])
        split = lambda given, _, args: generators(given, args=args)  # noqa: E731
        dataset = SimpleNamespace(from_generator=split, range=tf.data.Dataset.range)
        given = SimpleNamespace(data=SimpleNamespace(Options=tf.data.Options, Dataset=dataset))
        names = apply(code, tf=given, your_generator=lambda k: read(k, parts))
    after = fit(tmp_path / "after", Timed(30), names["ds"])
    assert after["steps"] == before["steps"]
    assert_saved(paced(before), paced(after), findings(before, "input_bound"))
