"""Advice fits the run: what the facts say decides which line is printed, and which never is."""

import ast
import contextlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
from advised import Given, apply
from generated_runs import GPU, START_NS, Generated

from gpu_util_callback.diagnosis import Diagnosis
from gpu_util_callback.diagnosis._stall_advice import validation
from gpu_util_callback.diagnosis._words import what_to_do

TENSORFLOW = {"name": "tensorflow", "backend": "tensorflow", "version": "2.21.0", "keras": "3.15.1"}
JAX = {"name": "jax", "backend": "jax", "version": "0.10.2", "keras": "3.15.1"}
KERAS_TORCH = {"name": "torch", "backend": "torch", "version": "2.13.0", "keras": "3.15.1"}
TORCH = {"name": "torch", "backend": "torch", "version": "2.13.0"}
TF_KERAS = TENSORFLOW | {"keras": "tf_keras 2.21.0"}
LOOP = {"loop": "custom"}
PASCAL, TURING = GPU | {"compute_capability": "6.1"}, GPU | {"compute_capability": "7.5"}
GIB = 2**30


def fit(**facts) -> dict:
    return {"batch_size": 32, "steps_per_execution": 1, "input_kind": "tf.data"} | facts


def run_of(framework=TENSORFLOW, gpus=None, machine=None, script=None, **facts) -> Generated:
    return Generated(
        seed=1, gpus=[GPU] if gpus is None else gpus, framework=framework, script=script,
        fit=fit(**facts), machine=machine or {"cpus": 8, "cpus_allowed": 8},
        model={"name": "resnet", "parameters": 25_000_000},
    )  # fmt: skip


def found(run: Generated, cause: str, host: dict | None = None) -> dict:
    """The claim of a cause; `host`: CPU percentages over the run."""
    diagnosis = Diagnosis(run.facts)
    samples = run.samples()
    if host:
        times = np.arange(START_NS, run.now, 10**9)
        samples["host"] = {"time_ns": times} | {
            name: np.full(len(times), float(value)) for name, value in host.items()
        }
    diagnosis.add(run.tables(), samples)
    result = diagnosis.result(now_ns=run.now, ended=True)
    [claim] = [one for one in result["spans"] + result["findings"] if one["cause"] == cause]
    return claim


# ---- one run per cause -------------------------------------------------------------------------


def waits(*stages, wait_ms=30.0, step_ms=10.0, epochs=1, **facts) -> Generated:
    run = run_of(epochs=epochs, **facts)
    for _ in range(epochs):
        start = run.now
        run.steps(400, step_ms=step_ms, wait_ms=wait_ms, gpu_share=0.3)
        if stages:
            run.reading(*stages, batches=400)
        run.epoch(start)
    return run


def traced(share: str, value: float = 0.4, **facts) -> Generated:
    run = run_of(**facts)
    run.steps(300, step_ms=10, gpu_share=0.5)
    run.trace(8, 10, kernels=500, **{share: value})
    run.steps(300, step_ms=10, gpu_share=0.5)
    return run


def plain_kernels(gpu=GPU, **facts) -> Generated:
    run = run_of(gpus=[gpu], **facts)
    run.steps(300, step_ms=10, gpu_share=0.95)
    run.trace(8, 10, kernels=200)
    run.kernel("ampere_sgemm_128x64_nn", 90, "no")
    run.kernel("elementwise", 10, "no")
    return run


def full_memory(gpu=GPU, retries: int = 0, **facts) -> Generated:
    run = run_of(gpus=[gpu], **facts)
    run.steps(1000, step_ms=10)
    for column in ("allocator_used_bytes", "allocator_peak_bytes"):
        run.gpu_value(column, 15, 0.97 * 0.92 * gpu["memory_total_bytes"])
    run.gpu_value("allocator_limit_bytes", 15, 0.92 * gpu["memory_total_bytes"])
    run.gpu_value("allocator_retries", 15, retries)
    return run


def nearly_empty(used: float, **facts) -> Generated:
    run = run_of(**facts)
    run.steps(2000, step_ms=10, gpu_share=0.97)
    run.gpu_value("sm_active_pct", 30, 8)
    run.gpu_value("allocator_peak_bytes", 30, used * GPU["memory_total_bytes"])
    return run


def compiles(**facts) -> Generated:
    run = run_of(**facts)
    values = np.zeros(400)
    values[5::10] = 250
    run.steps(400, step_ms=10, compile_ms=values)
    return run


def hooks(name: str, ms: float = 20, **facts) -> Generated:
    run = run_of(**facts)
    start = run.now
    run.steps(400, step_ms=10, callback_ms=ms)
    run.hook_detail(name, start, run.now, round(400 * ms * 1e6), 400)
    return run


def phases(kind: str, name: str, seconds: float = 2, count: int = 6, **facts) -> Generated:
    run = run_of(**({"epochs": count, "steps_per_epoch": 200} | facts))
    for _ in range(count):
        start = run.now
        run.steps(200, step_ms=10)
        account = "input_wait" if kind == "input_setup" else None
        run.phase(kind, seconds, name=name, account=account)
        run.epoch(start)
    return run


def one_gpu_of(count: int, **facts) -> Generated:
    run = run_of(gpus=[GPU | {"index": i, "nvml_index": i} for i in range(count)], **facts)
    run.steps(1000, step_ms=10)
    for gpu in range(1, count):
        run.gpu_value("utilization_pct", 15, 0, gpu=gpu)
    return run


DECODE = ("map(decode)", "ParallelMapV2", 80.0, 1.0, "fixed_parallelism")
TUNED = ("map(decode)", "ParallelMapV2", 240.0, 8.0, "autotuned")
PYTHON = ("map(decode)", "Map", 40.0, 1.0, "py_function,sequential,stateful")
FILTER = ("filter(keep)", "Filter", 40.0, 1.0, "")
READER = ("TFRecordDataset", "TFRecord", 40.0, 1.0, "")
BATCH = ("batch", "BatchV2", 40.0, 1.0, "")
WAITING = {"process_cpu_pct": 12, "cpu_pct": 15}
COMPUTING = {"process_cpu_pct": 140, "cpu_pct": 60}
ALL_CORES = {"process_cpu_pct": 620, "cpu_pct": 80}
DATALOADER = {"input_kind": "torch DataLoader", "input_class": "Images", "input_workers": 0}
PYDATASET = {"input_kind": "PyDataset", "input_class": "Images", "input_workers": 0}

LENGTHS = [[32, [40, 500]], [32]]

# name, run, cause, host, in the code, never in the code
INPUTS = [
    ("fixed parallelism", waits(DECODE), None, "num_parallel_calls=tf.data.AUTOTUNE", "prefetch"),
    ("its name is printed", waits(DECODE), COMPUTING, "ds.map(decode, ", "fn"),
    ("waiting on more than the cores", waits(DECODE, machine={"cpus": 2}), WAITING,
     "private_threadpool_size = 12", "cache"),
    ("waiting on fewer than the cores", waits(PYTHON, machine={"cpus": 64}), WAITING,
     "ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE", "threadpool"),
    ("Python that computes", waits(PYTHON), COMPUTING, "without py_function", "threadpool"),
    ("Python that computes on many threads", waits(("map(decode)", "ParallelMapV2", 240.0, 8.0,
     "py_function,autotuned,stateful")), {"process_cpu_pct": 105, "cpu_pct": 20},
     "without py_function", "threadpool"),
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
     "def ahead", "ds."),
    ("a TensorFlow loop that times its fetches", waits(input_kind=None, epochs=5, **LOOP), None,
     "def ahead", "cache"),
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
    ("dataset that computes", waits(framework=JAX, **PYDATASET), COMPUTING,
     "dataset.use_multiprocessing = True", "ds."),
    ("dataset on threads that compute", waits(**PYDATASET | {"input_workers": 4,
     "input_processes": False}), COMPUTING, "use_multiprocessing = True", "AUTOTUNE"),
    ("Sequence of tf_keras", waits(framework=TF_KERAS, **PYDATASET), COMPUTING,
     "model.fit(..., workers=", "dataset."),
    ("generator on torch", waits(framework=KERAS_TORCH, input_kind="generator"), None,
     "class Batches(keras.utils.PyDataset)", "DataLoader"),
    ("generator in a loop on JAX", waits(framework=JAX, input_kind="generator", **LOOP), None,
     "def ahead(batches)", "keras"),
    ("generator in a loop on torch", waits(framework=TORCH, input_kind="generator", **LOOP), None,
     "torch.utils.data.DataLoader(", "keras"),
    ("arrays on TensorFlow", waits(input_kind="numpy"), None, 'astype("uint8")', "float16"),
    ("arrays on JAX", waits(framework=JAX, input_kind="numpy"), None, "x[i * 32 : (i + 1) * 32]",
     "ds."),
    ("tf.data on torch", waits(DECODE, framework=KERAS_TORCH), None, "tf.data.AUTOTUNE",
     "DataLoader"),
    ("grain", waits(framework=JAX, input_kind="grain"), None, "mp_prefetch", "tf.data"),
]  # fmt: skip

OTHERS = [
    ("sync", traced("idle_sync"), "steps_per_execution=16", "jit"),
    ("sync on JAX", traced("idle_sync", framework=JAX), "steps_per_execution=16", "item"),
    ("sync of Keras on torch", traced("idle_sync", framework=KERAS_TORCH), "ds.batch(128)",
     "steps_per_execution"),
    ("sync of a torch loop", traced("idle_sync", framework=TORCH, **LOOP), "loss.item()",
     "steps_per_execution"),
    ("sync of a TensorFlow loop", traced("idle_sync", **LOOP), "float(loss)", "model.compile"),
    ("sync under a strategy", traced("idle_sync", strategy="MirroredStrategy"), "ds.batch(128)",
     "steps_per_execution"),
    ("sync, eager", traced("idle_sync", run_eagerly=True), "run_eagerly=False",
     "steps_per_execution"),
    ("launch", traced("idle_launch"), "jit_compile=True", "batch"),
    ("launch, compiled already", traced("idle_launch", jit_compile=True), "ds.batch(128)",
     "jit_compile"),
    ("launch, eager", traced("idle_launch", run_eagerly=True), "run_eagerly=False", "jit"),
    ("launch on JAX", traced("idle_launch", framework=JAX), "ds.batch(128)", "jit_compile"),
    ("launch of a JAX loop", traced("idle_launch", framework=JAX, **LOOP), "jax.jit(", "keras"),
    ("launch of Keras on torch", traced("idle_launch", framework=KERAS_TORCH), "jit_compile=True",
     "torch.compile"),
    ("launch of a torch loop", traced("idle_launch", framework=TORCH, **LOOP), "torch.compile(",
     "model.compile"),
    ("arrays: the batch is fit's", traced("idle_launch", framework=JAX, input_kind="numpy"),
     "model.fit(..., batch_size=128)", "ds."),
    ("copies", traced("copy_h2d"), "prefetch_to_device", "pin_memory"),
    ("copies under a strategy", traced("copy_h2d", strategy="MirroredStrategy"), "Rescaling",
     "prefetch_to_device"),
    ("copies from arrays", traced("copy_h2d", input_kind="numpy"), "Rescaling", "prefetch"),
    ("copies of a torch loader", traced("copy_h2d", framework=TORCH, **DATALOADER, **LOOP),
     "pin_memory=True", "prefetch_to_device"),
    ("copies of a pinned loader", traced("copy_h2d", framework=TORCH, input_pin_memory=True,
     **DATALOADER, **LOOP), "uint8", "pin_memory"),
    ("copies on JAX", traced("copy_h2d", framework=JAX), "Rescaling", "prefetch_to_device"),
    ("communication", traced("collective", strategy="MirroredStrategy"), "ds.batch(128)",
     "gradient_accumulation_steps"),
    ("communication on JAX", traced("collective", framework=JAX), "ds.batch(128)",
     "gradient_accumulation_steps"),
    ("communication on torch", traced("collective", framework=TORCH, **LOOP), "no_sync()", "keras"),
    ("communication on torch, updated as often", traced("collective", framework=TORCH, **LOOP),
     "if last:\n    optimizer.step()\n    optimizer.zero_grad()", "keras"),
    ("32-bit products on Hopper", plain_kernels(), "mixed_bfloat16", "mixed_float16"),
    ("32-bit products on Turing", plain_kernels(TURING), "mixed_float16", "bfloat16"),
    ("32-bit products of a torch loop", plain_kernels(framework=TORCH, **LOOP), "torch.autocast",
     "keras"),
    ("32-bit products of a JAX loop", plain_kernels(framework=JAX, **LOOP),
     "x = x.astype(jnp.bfloat16)", "keras"),
    ("mixed precision is on", plain_kernels(mixed_precision="mixed_bfloat16"), "8 * math.ceil",
     "policy"),
    ("full memory", full_memory(), "mixed_bfloat16", "gradient"),
    ("full memory on Pascal", full_memory(PASCAL), "ds.batch(16)", "mixed"),
    ("full memory, mixed already", full_memory(mixed_precision="mixed_float16"),
     "gradient_accumulation_steps=2", "mixed"),
    ("full memory under a strategy", full_memory(PASCAL, strategy="MirroredStrategy"),
     "ds.batch(16)", "gradient_accumulation_steps"),
    ("full memory of tf_keras", full_memory(PASCAL, framework=TF_KERAS), "ds.batch(16)",
     "gradient_accumulation_steps"),
    ("full memory of a torch loop, updated half as often", full_memory(framework=TORCH, retries=3,
     **DATALOADER, **LOOP), "if step % 2 == 1:\n    optimizer.step()", "keras"),
    ("full memory of a torch loop", full_memory(framework=TORCH, retries=3, **DATALOADER, **LOOP),
     "batch_size=16", "keras"),
    ("empty GPU, much memory", nearly_empty(0.05), "ds.batch(256)", "jit"),
    ("empty GPU, a third used", nearly_empty(0.3), "ds.batch(64)", "256"),
    ("empty GPU, loader", nearly_empty(0.05, framework=TORCH, **DATALOADER),
     "DataLoader(dataset, ..., batch_size=256)", "ds."),
    ("shapes", compiles(input_dims=[[None, None], [None]]), "padded_batch(32", "np.pad"),
    ("shapes on JAX", compiles(framework=JAX, input_kind="list", input_dims=LENGTHS), "np.pad",
     "padded_batch"),
    ("shapes of a dataset", compiles(**PYDATASET, input_dims=LENGTHS), "np.pad", "ds."),
    ("shapes of batches that differ in size", compiles(framework=JAX, **PYDATASET,
     input_dims=[[[20, 31], 16], [[20, 31]]]), "np.arange(31)", "np.pad"),
    ("shapes of a torch loop", compiles(framework=TORCH, **DATALOADER, **LOOP), "dynamic=True",
     "np.pad"),
    ("hook", hooks("Watcher.on_train_batch_end"), "if batch % 100 == 0", "epoch"),
    ("hook of a loop", hooks("logging", **LOOP), 'monitor.phase("logging")', "batch %"),
    ("TensorBoard", hooks("TensorBoard.on_train_batch_end"), 'update_freq="epoch"', "if batch"),
    ("TensorBoard by epoch", hooks("TensorBoard.on_train_batch_end", tensorboard_freq="epoch"),
     "super().on_train_batch_end(batch)", "update_freq"),
    ("progress bar", hooks("ProgbarLogger.on_train_batch_end", 1), "verbose=2", "if batch"),
    ("saving by batch", hooks("BackupAndRestore.on_train_batch_end"),
     "keras.callbacks.BackupAndRestore(..., save_freq=", "ModelCheckpoint"),
    ("own saver by batch", hooks("MyCheckpoint.on_train_batch_end"), "if batch % 100",
     "ModelCheckpoint"),
    ("saving by epoch", phases("checkpoint", "ModelCheckpoint.on_epoch_end", epochs=100),
     "ModelCheckpoint(..., save_freq=50 * 200)", "Backup"),
    ("saving in six epochs", phases("checkpoint", "ModelCheckpoint.on_epoch_end"),
     "model.save(", "save_freq"),
    ("callback by epoch", phases("callback", "Plots.on_epoch_end", 0.5, epochs=100),
     "if epoch % 10 == 0", "batch"),
    ("callback in six epochs", phases("callback", "Plots.on_epoch_end", 0.5), "on_train_end",
     "epoch %"),
    ("validation", phases("validation", "validation", 1), "validation_", "cache"),
    ("restart", phases("input_setup", "new iterator"), "ds.repeat(), ..., steps_per_epoch=200",
     "persistent"),
    ("restart of arrays", phases("input_setup", "new iterator", input_kind="numpy"),
     "from_tensor_slices((x, y)).shuffle(len(x)).batch(32)", "persistent"),
    ("restart of a loader", phases("input_setup", "new iterator", **DATALOADER),
     "persistent_workers=True", "repeat"),
    ("restart of processes", phases("input_setup", "new iterator", **PYDATASET |
     {"input_workers": 4, "input_processes": True}), "use_multiprocessing = False", "repeat"),
    ("validation of a loop", phases("validation", "validation", 1, **LOOP),
     'with monitor.phase("validation")', "model.fit"),
    ("unused GPUs", one_gpu_of(4), "MirroredStrategy", "torchrun"),
    ("unused GPUs on JAX", one_gpu_of(4, framework=JAX), "DataParallel()", "Mirrored"),
    ("unused GPUs on torch", one_gpu_of(4, framework=TORCH, script="run.py", **LOOP),
     "torchrun --nproc-per-node=4 run.py", "python"),
    ("unused GPUs of a module", one_gpu_of(2, script="lab.train", **LOOP),
     "CUDA_VISIBLE_DEVICES=0 python -m lab.train", "Mirrored"),
]  # fmt: skip
CAUSES = {
    "sync": "sync_bound", "launch": "launch_bound", "arrays": "launch_bound",
    "copies": "transfer_bound", "communication": "communication_bound",
    "32-bit": "no_tensor_cores", "mixed": "no_tensor_cores", "full": "memory_pressure",
    "empty": "small_batch", "shapes": "recompilation", "hook": "host_stall",
    "TensorBoard": "host_stall", "progress": "host_stall", "saving": "host_stall",
    "own": "host_stall", "callback": "host_stall", "validation": "host_stall",
    "unused": "gpus_unused", "restart": "input_bound",
}  # fmt: skip
CASES = [pytest.param(run, "input_bound", *rest, id=name) for name, run, *rest in INPUTS]
CASES += [
    pytest.param(run, CAUSES[re.split(r"[ ,:]", name)[0]], None, *rest, id=name)
    for name, run, *rest in OTHERS
]
SHELL = ("pip ", "nvidia-smi ", "sudo ", "gpu-util ", "torchrun ", "python ", "top ", "unset ")
OURS = re.compile(r"_ns\b|_pct\b|lost_s|unstarved|innocent|claim|\bGPM\b|stage_|None|nan|\bfn\b")


@pytest.mark.parametrize("run, cause, host, there, never", CASES)
def test_the_line_fits_the_run(run, cause, host, there, never):
    claim = found(run, cause, host)
    code, text = claim["advice"]["code"], claim["advice"]["text"]
    assert there in code, code
    assert never not in code, code
    assert_readable(code, text)
    assert 0 <= (claim["saves_s"] or 0) <= (claim["lost_s"] or 0)


def assert_readable(code: str, text: str) -> None:
    """A line that can be run as it stands, and a text for people who do not know our code."""
    command = code.startswith(SHELL) or re.match(r"[A-Z_]+=\S+ ", code)
    if not command and not code.startswith("%"):
        ast.parse(code)
    assert "<" not in code and "{" not in text and "{" not in code
    assert not OURS.search(text), text
    sentences = [one for one in re.split(r"[.!?](?: |$)", text) if one]
    assert len(sentences) <= 3 and len(text) <= 330, text


def test_launching_gets_threads_of_its_own_where_the_input_takes_all_cores():
    busy = {"process_cpu_pct": 790, "cpu_pct": 98}
    code = found(traced("idle_launch", script="fit.py"), "launch_bound", busy)["advice"]["code"]
    assert code == "TF_GPU_THREAD_MODE=gpu_private python fit.py"
    for run in (traced("idle_launch", framework=JAX), traced("idle_launch", input_kind="numpy")):
        assert "THREAD_MODE" not in found(run, "launch_bound", busy)["advice"]["code"]
    assert (
        "THREAD_MODE" not in found(traced("idle_launch"), "launch_bound", WAITING)["advice"]["code"]
    )


def test_a_pascal_gpu_is_never_told_to_train_in_16_bits():
    run = plain_kernels(PASCAL)
    assert "no_tensor_cores" not in {one["cause"] for one in run.diagnose()["findings"]}


def test_what_the_cache_saves_is_what_later_epochs_would_wait():
    for epochs in (2, 4, 10):
        claim = found(waits(FILTER, epochs=epochs), "input_bound")
        assert claim["saves_s"] == pytest.approx(claim["lost_s"] * (1 - 1 / epochs), rel=0.03)


@pytest.mark.parametrize("cpus, gain", [(2, 0.0), (4, 2.0), (64, 4.0)])
def test_threads_save_no_more_than_the_cores_allow(cpus, gain):
    """40 ms a step, 80 ms of work on one thread, a batch needed every 10 ms."""
    claim = found(waits(DECODE, machine={"cpus": cpus}), "input_bound", COMPUTING)
    arrives_ms = max(10, 80 / cpus)
    if gain:
        assert claim["evidence"]["faster_up_to"] == pytest.approx(40 / arrives_ms, rel=0.05)
        assert "AUTOTUNE" in claim["advice"]["code"]
    else:
        assert "AUTOTUNE" not in claim["advice"]["code"], "two cores cannot make them any faster"


def test_containers_have_the_cores_they_may_use():
    machine = {"cpus": 64, "cpus_allowed": 16, "cpu_quota": 4.0}
    claim = found(waits(DECODE, machine=machine), "input_bound", COMPUTING)
    assert claim["evidence"]["faster_up_to"] == pytest.approx(2.0, rel=0.05)


def test_what_is_left_of_a_callback_is_not_promised_away():
    claim = found(hooks("Watcher.on_train_batch_end"), "host_stall")
    assert claim["saves_s"] == pytest.approx(0.99 * claim["lost_s"], rel=0.005)


def test_the_verdict_promises_what_the_advice_saves():
    run = waits(FILTER, epochs=2)
    verdict = run.diagnose()["verdict"]
    assert "up to 1.6× faster" in verdict, (
        verdict
    )  # 40 ms a step, 30 of them waits, half of them kept


def test_set_ups_that_follow_one_another_are_one():
    """Keras begins a PyDataset in three pieces: an epoch is set up once, for their sum."""
    run = run_of(epochs=6, steps_per_epoch=200, **PYDATASET)
    for _ in range(6):
        start = run.now
        for seconds in (1.5, 0.001, 0.01):
            run.phase("input_setup", seconds, name="workers", account="input_wait")
            run.now += 1000
        run.steps(200, step_ms=10)
        run.epoch(start)
    [found] = run.diagnose()["findings"] or run.diagnose()["spans"]
    assert found["evidence"]["times"] == 6
    assert found["evidence"]["seconds_each"] == pytest.approx(1.511, abs=0.01)
    assert "on_epoch_end" in found["advice"]["text"] and not found["advice"]["code"]


def test_a_loop_that_times_its_fetches_is_told_of_no_loader_that_it_may_not_have():
    run = waits(framework=TORCH, input_kind=None, **LOOP)
    assert "The DataLoader makes" not in found(run, "input_bound")["advice"]["text"]


def test_arrays_that_begin_late_wait_for_a_core():
    """Keras begins them anew in milliseconds; nothing in the script could be set up once."""
    found = phases("input_setup", "iterator", input_kind="numpy", framework=JAX).diagnose()
    [claim] = [*found["findings"], *found["spans"]]
    assert "cores busy" in claim["advice"]["text"] and not claim["advice"]["code"]


@pytest.mark.parametrize("dims, names", [
    ([[[20, 31], 16], [[20, 31]]], "xy"),
    ([[8, [40, 500]], [8]], "xy"),
    ([[8, [40, 300], [40, 300], 3], [8]], "xy"),
    ([[[5, 8], [40, 300]], [[5, 8], [40, 300]]], "xy"),
    ([[[5, 8], 7]], "x"),
])  # fmt: skip
def test_the_axes_that_vary_are_made_alike_and_no_other(dims, names):
    claim = found(compiles(framework=JAX, **PYDATASET, input_dims=dims), "recompilation")
    random, seen = np.random.default_rng(0), set()
    for _ in range(40):
        batch = random.integers(*dims[0][0]) if isinstance(dims[0][0], list) else dims[0][0]
        given = {
            name: np.ones([
                batch if axis == 0 else random.integers(*size) if isinstance(size, list) else size
                for axis, size in enumerate(sizes)
            ])
            for name, sizes in zip(names, dims, strict=True)
        }  # fmt: skip
        before = {name: array.shape for name, array in given.items()}
        after = apply(claim["advice"]["code"], np=np, **given)
        shapes = tuple(after[name].shape for name in names)
        seen.add(shapes)
        for name, shape, sizes in zip(names, shapes, dims, strict=True):
            assert all(now >= was for now, was in zip(shape, before[name], strict=True))
            fixed = [axis for axis, size in enumerate(sizes) if not isinstance(size, list)]
            assert [shape[axis] for axis in fixed] == [sizes[axis] for axis in fixed]
    assert len(seen) <= 4 ** sum(isinstance(size, list) for sizes in dims for size in sizes[1:])


@pytest.mark.parametrize("dims, code", [
    ([[None, 16], [None]], "ds = ds.unbatch().batch(32, drop_remainder=True)"),
    ([[None, None, None, 3], [None]], "padded_shapes=([512, 512, 3], [])"),
    ([[None, None], [None, None]], "padded_shapes=([512], [512])"),
    ([[None, None]], "padded_shapes=[512]"),
    (None, ""),
])  # fmt: skip
def test_ready_batches_of_any_rank_are_batched_again(dims, code):
    tf = pytest.importorskip("tensorflow")
    claim = found(compiles(input_dims=dims), "recompilation")
    assert code in claim["advice"]["code"] and bool(code) == bool(claim["advice"]["code"])
    if not code:
        return

    def make():
        for index in range(12):
            shapes = [[(24 + index) if size is None else size for size in one] for one in dims]
            made = tuple(tf.ones([24 + index, *shape[1:]]) for shape in shapes)
            yield made if len(made) > 1 else made[0]

    specs = tuple(tf.TensorSpec(shape) for shape in dims)
    ds = tf.data.Dataset.from_generator(
        make, output_signature=specs if len(specs) > 1 else specs[0]
    )
    ds = apply(claim["advice"]["code"], ds=ds)["ds"]
    batches = [tf.nest.flatten(batch) for batch in ds]
    assert len(batches) > 5
    assert len({tuple(tuple(one.shape) for one in batch) for batch in batches}) == 1
    assert [one.shape.rank for one in batches[0]] == [len(shape) for shape in dims]


def test_shapes_that_stay_the_same_are_not_to_blame():
    claim = found(compiles(framework=JAX, input_dims=[[32, 16], [32]]), "recompilation")
    assert "stayed the same" in claim["advice"]["text"] and not claim["advice"]["code"]


class Facts:
    """As much of a run as the advice about a validation asks for: 6 of them, 40 batches each."""

    ended, validation = True, SimpleNamespace(total_rows=240)

    def __init__(self, framework="jax", **facts):
        self.framework = framework
        self.facts = {"fit": {"epochs": 6, "input_kind": "numpy"} | facts, "framework": {}}

    def fact(self, group, name, default=None):
        value = self.facts[group].get(name)
        return default if value is None else value


def slow_validation(waited: float, **facts):
    took = 6 * 2 * 10**9
    return validation(
        Facts(**facts), count=6, took_ns=took, wait_ns=round(waited * took), span_ns=2 * took,
        pct=50,
    )  # fmt: skip


@pytest.mark.parametrize("workers, then", [(0, 4), (1, 4), (4, 8)])
def test_a_validation_that_waits_for_its_own_dataset_gets_workers(workers, then):
    advice = slow_validation(0.93, validation_kind="PyDataset", validation_workers=workers)
    dataset = apply(advice.code, val_dataset=SimpleNamespace())["val_dataset"]
    assert (dataset.workers, dataset.use_multiprocessing) == (then, True)
    assert "waits for its data 93 %" in advice.text and 0.4 < advice.saves < 0.93


def test_a_validation_that_waits_for_a_loader_gets_workers():
    advice = slow_validation(0.8, framework="torch", validation_kind="torch DataLoader")
    given = Given(lambda dataset, **settings: settings)
    apply(advice.code, DataLoader=given, val_dataset=[])
    assert given.result["num_workers"] == 4


def test_a_validation_that_waits_for_batches_of_a_loop_makes_them_once():
    advice = slow_validation(0.8, loop="custom", validation_kind="generator")
    assert apply(advice.code, val_dataset=iter([1, 2]))["val_dataset"] == [1, 2]


@pytest.mark.parametrize("waited, kind", [(0.3, "PyDataset"), (0.8, "numpy")])
def test_a_validation_that_computes_is_made_less(waited, kind):
    assert "model.fit(" in slow_validation(waited, validation_kind=kind).code


@pytest.mark.parametrize("count", [3, 6])
def test_short_loops_do_a_thing_once(count):
    """No `epoch % 50` where there are six."""
    claim = found(phases("callback", "plots", 2, count, **LOOP), "host_stall")
    done = []
    for epoch in range(count):
        apply(
            claim["advice"]["code"], work=lambda epoch=epoch: done.append(epoch), epoch=epoch,
            monitor=SimpleNamespace(phase=lambda name: contextlib.nullcontext()),
        )  # fmt: skip
    assert done == [count - 1]


def test_a_saver_that_saves_every_batch_saves_once_in_a_short_training():
    run = hooks("ModelCheckpoint.on_train_batch_end", 400, epochs=4, steps_per_epoch=100)
    assert "model.save(" in found(run, "host_stall")["advice"]["code"]


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


def test_looking_is_nothing_to_do_first():
    text = "Move the other program away."
    for code in (
        "nvidia-smi pmon -i 0 -c 1",
        "sudo dmesg | grep -i xid",
        "nvidia-smi -i 0 -q -d X",
    ):
        assert what_to_do({"text": text, "code": code}) == text
    change = "sudo nvidia-smi -i 0 -pl 300"
    assert what_to_do({"text": text, "code": change}) == change


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
