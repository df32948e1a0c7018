"""Whose fault it is: pipelines of several GPUs, GPUs beside the training, what the host does; in whose words."""

from types import SimpleNamespace

import pytest
from test_kineto_layouts import event, kernel, launch, write
from xspace_builder import FETCH, NEXT, Gpu, Kernel, On, Space, repeated

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.hostside import wording
from gpu_util_callback.traces.imported import analyse

STEPS, STEP_US = 20, 10_000


def input_bound(paths: dict[str, float]) -> Space:
    """Every step waits 8 ms for a batch; `paths`: pipeline stages and their time a step, µs."""
    stages = [On(f"tf_data_worker/{i}", path, 10, took_us) for i, (path, took_us) in enumerate(paths.items())]
    return repeated(STEPS, STEP_US, On(FETCH, NEXT, 10, 8_000, {"id": 0}), *stages, Kernel("gemm", 8_060, 1_500))


def the_input_bound(result: dict) -> dict:
    return next(f for f in result["findings"] if f["cause"] == "input_bound")


# As TensorFlow 2.21 names them under MirroredStrategy (seen): each GPU takes its part of the common
# pipeline by one of its own, and what a repeated or flat-mapped dataset opened is numbered.
MIRRORED = {
    "Iterator::Root::Prefetch": 7_900,
    "Iterator::Root::Prefetch::Generator": 7_890,
    "Iterator::Root::Prefetch::Rebatch": 7_800,
    "Iterator::Root::Prefetch::Rebatch::ForeverRepeat": 7_790,
    "Iterator::Root::Prefetch::Rebatch::ForeverRepeat[0]::Batch": 7_780,
    "Iterator::Root::Prefetch::Rebatch::ForeverRepeat[0]::Batch::Map": 7_700,
}


def test_the_pipeline_of_each_gpu_is_not_the_slow_one(explain):
    result = explain(input_bound(MIRRORED))
    finding = the_input_bound(result)
    stages = {row["stage"]: row["self_ms"] for row in result["pipeline"]}
    assert "Generator" not in stages, "it waits for the common pipeline, and makes nothing"
    assert stages["Map"] == pytest.approx(STEPS * 7.7)
    assert stages["ForeverRepeat"] == pytest.approx(STEPS * 0.01), "the rest was inside Batch"
    assert finding["evidence"]["slowest_stage"].endswith("::ForeverRepeat::Batch::Map")
    assert "num_parallel_calls" in finding["advice"]["code"]


def test_a_generator_of_python_is_named(explain):
    paths = {
        "Iterator::Root::Prefetch::Batch": 7_800,
        "Iterator::Root::Prefetch::Batch::FlatMap": 7_700,
        "Iterator::Root::Prefetch::Batch::FlatMap[0]::Generator": 7_690,
    }
    advice = the_input_bound(explain(input_bound(paths)))["advice"]
    assert "stage Generator" in advice["text"] and "Python generator" in advice["text"]


def test_files_of_an_interleave_are_one_stage(explain):
    paths = {f"Iterator::Root::ParallelInterleaveV4[{i}]::TFRecord": 2_000 for i in range(4)}
    result = explain(input_bound(paths))
    assert [row["stage"] for row in result["pipeline"]] == ["TFRecord"]
    assert result["pipeline"][0]["count"] == 4 * STEPS


@pytest.mark.parametrize(
    "stage, code",
    [
        ("Map", "num_parallel_calls"),
        ("ParallelMapV2", ""),
        ("MapAndBatch", ""),
        ("BatchV2", ""),
        ("Shuffle", ""),
        ("TFRecord", "cycle_length=8"),
    ],
)
def test_what_runs_in_parallel_is_not_told_to(explain, stage, code):
    paths = {f"Iterator::Root::Prefetch::{stage}": 7_800}
    advice = the_input_bound(explain(input_bound(paths)))["advice"]
    assert code in advice["code"] and bool(code) == bool(advice["code"]) == advice["question"]


def test_a_gpu_that_ran_a_few_kernels_is_not_judged(explain):
    space = repeated(STEPS, STEP_US, *(Kernel("gemm_a", 10 + 1_100 * k, 1_090) for k in range(9)))
    Gpu(space, 1, space.host.line("tf_Compute/2", 9)).launch("initialise", 100, 110, 50)
    result = explain(space)
    assert result["findings"] == [], "its idle time is nobody's loss, and its share no imbalance"
    assert any("GPU 1 ran hardly any kernels" in problem for problem in result["problems"])
    assert [device["kernels"] for device in result["devices"]] == [9 * STEPS, 1], "still shown"


def idle_while(name: str, *beside: On) -> Space:
    """The GPU computes 3 ms of every 10; for the rest the host is in `name`."""
    kernels = [Kernel("gemm_a", 15 + 300 * k, 295) for k in range(10)]
    return repeated(STEPS, STEP_US, *kernels, On("main", name, 3_100, 6_700), *beside)


@pytest.mark.parametrize(
    "name, says",
    [
        ("SaveTheWorld", "is in SaveTheWorld: move it out of the step"),
        ("$loop.py:12 write_log", "is in loop.py:12 write_log: move it out"),
        ("PjitFunction(step)", "the framework itself prepares and starts"),
        ("backend_compile", "the host compiles (backend_compile)"),
        ("$api.py:3165 try_to_block", "Look at what the host does"),
    ],
)
def test_advice_fits_what_the_host_does(explain, name, says):
    (finding,) = [f for f in explain(idle_while(name))["findings"] if f["cause"] == "host_stall"]
    assert says in finding["advice"]["text"]


def test_who_is_waited_for_is_named_not_who_waits(explain):
    result = explain(idle_while("$api.py:3165 try_to_block", On("worker", "Build buffer allocations", 3_100, 6_600)))
    (finding,) = [f for f in result["findings"] if f["cause"] == "host_stall"]
    assert finding["evidence"]["host_activity"] == "Build buffer allocations"


def test_a_cause_that_all_ranks_have_is_said_once(tmp_path):
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for rank in range(4):
        events, wait = [], 6_000 + 100 * rank
        for step in range(10):
            at = step * 10_000
            events += [
                event("user_annotation", f"ProfilerStep#{step}", at, 10_000),
                event("user_annotation", loader, at, wait),
                launch(at + wait + 5, 5, step + 1),
                kernel("gemm", at + wait + 10, 3_000, step + 1, device=rank),
            ]
        write(tmp_path, events, f"rank{rank}.pt.trace.json", distributedInfo={"rank": rank})
    findings = analyse(read_trace(tmp_path)).findings
    (finding,) = [f for f in findings if f["cause"] == "input_bound"]
    assert finding["ranks"] == finding["gpus"] == [0, 1, 2, 3]
    assert finding["evidence"]["wait_pct"] == pytest.approx(63, abs=1), "of the worst"
    text = finding["advice"]["text"]
    assert "by few workers?" in text, "these loaders have workers: more of them"


@pytest.mark.parametrize(
    "format, names, framework",
    [
        ("kineto", ["aten::conv2d", "ProfilerStep#5"], "torch"),
        ("xplane", ["PjitFunction(step)", "jit_step:XLA GPU module"], "jax"),
        ("xplane", ["ExecutorState::Process", "IteratorGetNextOp::DoCompute"], "tensorflow"),
        ("xplane", ["IteratorGetNextOp::DoCompute", "PjitFunction(step)"], "jax"),
        ("nsys", ["cudaLaunchKernel"], ""),
    ],
)
def test_the_framework_is_known_by_its_calls(format, names, framework):
    trace = SimpleNamespace(format=format, names=SimpleNamespace(strings=names))
    assert wording(trace).framework == framework


def test_prefetch_only_waits_and_a_generator_includes_its_start(explain):
    result = explain(
        input_bound(
            {
                "Iterator::Root::Prefetch": 7_900,
                "Iterator::Root::Prefetch::FlatMap": 3_000,
                "Iterator::Root::Prefetch::FlatMap::Generator": 1_000,
            }
        )
    )
    assert {row["stage"]: row["self_ms"] for row in result["pipeline"]}["Prefetch"] == 0
    evidence = the_input_bound(result)["evidence"]
    assert evidence["slowest_stage"].endswith("::FlatMap::Generator")
    assert evidence["slowest_stage_self_ms"] == pytest.approx(STEPS * 3.0)


def test_the_arrays_of_a_fit_are_not_a_pipeline_of_the_user(explain):
    zipped = "Iterator::Root::Prefetch::ParallelMapV2::Zip"
    space = input_bound(
        {
            "Iterator::Root::Prefetch": 7_900,
            "Iterator::Root::Prefetch::ParallelMapV2": 7_000,
            f"{zipped}[0]::FlatMap": 20,
            f"{zipped}[1]::ForeverRepeat[0]::FromTensor": 10,
        }
    )
    space.host.line("python", 9).event("multi_step_on_iterator", 0, 10)
    finding = the_input_bound(explain(space))
    assert finding["evidence"]["slowest_stage"] is None
    assert "out of the arrays" in finding["advice"]["text"]


@pytest.mark.parametrize(
    ("iterator", "workers"),
    [
        ("_StatefulSingleProcessDataLoaderIter", False),
        ("_StatefulMultiProcessingDataLoaderIter", True),
        ("_SingleProcessDataLoaderIter", False),
        ("_MultiProcessingDataLoaderIter", True),
    ],
)
def test_the_loader_of_any_library_shows_its_workers(tmp_path, iterator, workers):
    name = f"enumerate(DataLoader)#{iterator}.__next__"
    events = [event("user_annotation", name, 0, 90), event("cpu_op", "aten::mm", 95, 20)]
    assert wording(read_trace(write(tmp_path, events))).workers is workers
