"""Runs of one cause each, made by a generator, and what their advice must be like."""

import ast
import re

import numpy as np
from generated_runs import GPU, START_NS, Generated

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
        seed=1,
        gpus=[GPU] if gpus is None else gpus,
        framework=framework,
        script=script,
        fit=fit(**facts),
        machine=machine or {"cpus": 8, "cpus_allowed": 8},
        model={"name": "resnet", "parameters": 25_000_000},
    )


def found(run: Generated, cause: str, host: dict | None = None) -> dict:
    """The finding of a cause; `host`: CPU percentages over the run."""
    samples = run.samples()
    if host:
        times = np.arange(START_NS, run.now, 10**9)
        samples["host"] = {"time_ns": times} | {name: np.full(len(times), float(value)) for name, value in host.items()}
    [finding] = run.findings(cause, samples=samples)
    return finding


# ---- one run per cause -------------------------------------------------------------------------


def waits(*stages, wait_ms=30.0, step_ms=10.0, epochs=1, elements=1, **facts) -> Generated:
    run = run_of(epochs=epochs, **facts)
    for _ in range(epochs):
        with run.epoch():
            run.steps(400, step_ms=step_ms, wait_ms=wait_ms, gpu_share=0.3)
            if stages:
                run.reading(*stages, batches=400, elements=elements)
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
    run.gpu_value("pcie_rx_bytes_per_s", 30, 2e8)
    run.gpu_value("pcie_tx_bytes_per_s", 30, 3e7)
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
        with run.epoch():
            run.steps(200, step_ms=10)
            run.phase(kind, seconds, name)
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

SHELL = ("pip ", "nvidia-smi ", "sudo ", "gpu-util ", "torchrun ", "python ", "top ", "unset ")
OURS = re.compile(r"_ns\b|_pct\b|lost_s|unstarved|innocent|claim|\bGPM\b|stage_|None|nan|\bfn\b")


def cases(runs: dict[str, list[tuple]]) -> list[tuple]:
    """(run, ...) by cause as parameters (run, cause, ...)."""
    return [(run, cause, *rest) for cause, rows in runs.items() for run, *rest in rows]


def check_line(run: Generated, cause: str, host: dict | None, there: str, never: str) -> None:
    """The finding's line holds `there`, not `never`, runs, and promises no more than is lost.

    `there` = "": there is no line, and nothing is promised.
    """
    finding = found(run, cause, host)
    code, text = finding["advice"]["code"], finding["advice"]["text"]
    if not there:
        assert code == "" and not finding["saves_s"], code
        _assert_readable(code, text)
        return
    assert there in code, code
    assert never not in code, code
    _assert_readable(code, text)
    before = finding["advice"]["before"]
    assert before != code
    ast.parse(before)
    assert 0 <= (finding["saves_s"] or 0) <= (finding["lost_s"] or 0)


def _assert_readable(code: str, text: str) -> None:
    """A line that can be run as it stands, and a text for people who do not know our code."""
    command = code.startswith(SHELL) or re.match(r"[A-Z_]+=\S+ ", code)
    if not command and not code.startswith("%"):
        ast.parse(code)
    assert "<" not in code and "{" not in text and "{" not in code
    assert not OURS.search(text), text
    sentences = [one for one in re.split(r"[.!?](?: |$)", text) if one]
    assert len(sentences) <= 4 and len(text) <= 360, text
