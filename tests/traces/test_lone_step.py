"""A trace of a single step: a call that fetched its batch, or of a function that trains."""

import json

import pytest
from xspace_builder import Gpu, Space

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse, import_trace

S = 1_000_000  # microseconds


def one_call(
    waits: bool = True,
    fetched_s: float = 2.34,
    called: str = "EagerLocalExecute: __inference_forward_7",
    run: str = "FunctionRun",
) -> bytes:
    """A call of 3.76 s: 2.34 s of fetching, then 1.3 s of kernels on a T4.

    Args:
        waits: whether the event of the call lasts as long as the call; TensorFlow's returns at once
            where other threads do the work, under the call's id.
        fetched_s: 0 = no batch is fetched in it.
        called: what is around the call on its thread.
    """
    space = Space()
    python = space.host.line("python", 1)
    worker = space.host.line("tf_Compute/1", 2)
    fetcher = space.host.line("tf_data_iterator_get_next/1", 3)
    gpu = Gpu(space, 0, worker, compute_cap_major=7, compute_cap_minor=5)
    ids = {"id": 4711} if run == "FunctionRun" else {}
    python.event(called, 0.09 * S, 3.77 * S)
    python.event(run, 0.1 * S, (3.76 if waits else 0.00001) * S, **ids)
    if fetched_s:
        fetcher.event("IteratorGetNextOp::DoCompute", 0.11 * S, fetched_s * S, **ids)
        fetcher.event("Iterator::Root::Prefetch::Map", 0.11 * S, (fetched_s - 0.01) * S)
    for k in range(50):
        at = 0.12 * S + fetched_s * S + k * 0.027 * S
        gpu.launch("elementwise_kernel", at, at + 10, 0.026 * S)
    worker.event("ExecutorDoneCallback", 3.855 * S, 0.005 * S, **ids)
    return space.bytes()


@pytest.fixture
def path(tmp_path):
    def write(data: bytes):
        file = tmp_path / "host.xplane.pb"
        file.write_bytes(data)
        return file

    return write


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_that_fetched_its_batch_is_a_step(path, capsys, waits):
    file = path(one_call(waits))
    analysis = analyse(read_trace(file))
    (finding,) = analysis.findings
    assert finding["cause"] == "input_bound"
    assert finding["evidence"]["wait_pct"] == pytest.approx(62.3, abs=0.5)
    assert analysis.problems == []
    text = render(analysis, width=100)
    assert "idle: input 2.3 s (62 %)" in text
    assert "not analyzed" not in text and "no steps" not in text
    assert main(["trace", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (process,) = shown["processes"]
    assert (process["steps_from"], process["steps"], process["steps_judged"]) == ("call", 1, True)
    assert shown["steps"][0]["duration_ms"] == pytest.approx(3760, abs=1)
    assert shown["steps"][0]["gpus"][0]["idle_input_ms"] == pytest.approx(2340, rel=0.01)
    assert [finding["cause"] for finding in shown["findings"]] == ["input_bound"]


@pytest.mark.parametrize(("fetched_s", "part"), [(2.34, "idle_input"), (0, "idle_launch")])
def test_the_tab_judges_an_imported_step(path, tmp_path, fetched_s, part):
    file = path(one_call(fetched_s=fetched_s))
    import_trace(file, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    report = run_report(recording)
    causes = [finding["cause"] for finding in [*report["findings"], *report["spans"]]]
    assert causes == ["input_bound"] * bool(fetched_s)
    assert recording.stored["verdict"] == analyse(read_trace(file)).verdict
    assert report["gpu_time_est"]["0"][part] > 0
    if fetched_s:
        assert "input" in report["verdict"] and "not analyzed" not in report["verdict"]
        assert report["gpu_time_est"]["0"]["idle_input"] == pytest.approx(2.34, rel=0.01)


@pytest.mark.parametrize(
    ("run", "called", "judged"),
    [
        ("FunctionRun", "EagerLocalExecute: __inference_train_step_12", True),
        ("FunctionRun", "EagerLocalExecute: __inference_one_step_on_data_12", True),
        ("PjitFunction(train_step)", "other", True),
        ("PjitFunction(update)", "other", True),
        ("FunctionRun", "EagerLocalExecute: __inference_forward_12", False),
        ("PjitFunction(predict_step)", "other", False),
        ("PjitFunction(pretrained_model)", "other", False),
        ("PjitFunction(trained_model)", "other", False),
    ],
)
def test_a_call_without_a_fetch_is_a_step_by_its_name(path, run, called, judged):
    analysis = analyse(read_trace(path(one_call(fetched_s=0, run=run, called=called))))
    (process,) = analysis.processes
    assert (process.has_steps, process.idle_judged) == (judged, True)
    text = render(analysis, width=100)
    assert ("1 step " in text) == judged and ("no steps found" in text) != judged
    if judged:  # the call goes on for long after its last kernel
        assert [finding["cause"] for finding in analysis.findings] == ["host_stall"]
    else:
        assert analysis.findings == []
        assert analysis.verdict == (
            "Nothing held up the GPU: kernels ran 96 % of the time between the first and the last GPU work."
        )


def test_a_call_written_as_two_events_is_one_step_that_ends_with_its_own_work(path):
    """TensorFlow 2.4 writes two FunctionRun events of one id for one call of train_function."""
    space = Space()
    python, worker = space.host.line("python", 1), space.host.line("tf_gpu_private_0", 2)
    fetcher = space.host.line("tf_data_iterator_get_next/1", 3)
    gpu = Gpu(space, 0, worker)
    python.event("FunctionRun", 1_000, 200, id=77)
    fetcher.event("IteratorGetNextOp::DoCompute", 1_300, 60_000, id=77)
    for k in range(30):
        gpu.launch("gemm", 62_000 + k * 1_000, 62_010 + k * 1_000, 900)
    python.event("FunctionRun", 62_000, 20, id=77)
    for k in range(30):  # functions within it
        worker.event("FunctionRun", 62_000 + k * 1_000, 900, id=1_000 + k)
    worker.event("ExecutorDoneCallback", 92_000, 10, id=77)
    # A helper's call, and what the program does long after the step.
    python.event("FunctionRun", 95_000, 50, id=78)
    gpu.launch("argmax", 24_000_000, 24_000_010, 5)
    analysis = analyse(read_trace(path(space.bytes())))
    (process,) = analysis.processes
    assert (process.steps.basis, process.steps.judged) == ("call", True)
    took = process.steps.end_ps - process.steps.start_ps
    assert (took / 1e9).tolist() == pytest.approx([91.0], abs=0.1)
    (finding,) = analysis.findings
    assert finding["cause"] == "input_bound"
    assert finding["evidence"]["wait_pct"] == pytest.approx(66, abs=1)


def test_a_call_beside_which_most_work_runs_is_no_step(path):
    space = Space()
    python, worker = space.host.line("python", 1), space.host.line("worker", 2)
    gpu = Gpu(space, 0, worker)
    python.event("PjitFunction(train_step)", 0, 100)
    for k in range(40):
        gpu.launch("fusion", 500 + k * 5_000, 510 + k * 5_000, 1_000)
    analysis = analyse(read_trace(path(space.bytes())))
    (process,) = analysis.processes
    assert not process.has_steps and process.steps.basis == "trace"
    assert [finding["cause"] for finding in analysis.findings] == ["host_stall"]
    assert analysis.findings[0]["severity"] == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("fetched", [False, True])
def test_the_last_of_several_calls_lasts_until_its_threads_are_done(path, fetched):
    """A batch that is fetched outside of a call does not make a single one a step."""
    space = Space()
    python, worker = space.host.line("python", 1), space.host.line("tf_Compute/1", 2)
    for step in range(1 if fetched else 4):
        python.event("FunctionRun", step * 1000, 10, id=100 + step)
        worker.event("ExecutorDoneCallback", step * 1000 + 900, 50, id=100 + step)
    if fetched:
        space.host.line("tf_data", 3).event("IteratorGetNextOp::DoCompute", 2000, 500, id=2)
    (process,) = analyse(read_trace(path(space.bytes()))).processes
    assert process.has_steps != fetched
    if not fetched:
        lengths = (process.steps.end_ps - process.steps.start_ps).tolist()
        assert lengths == [1000_000_000] * 3 + [950_000_000]
