"""Graphs of PyTorch that are kept, and gone through again by each later backward of a step."""

import pytest
from generated_runs import Generated, findings_of

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.steps.dispatch import keeps_graph

torch = pytest.importorskip("torch")


@pytest.mark.real_clock("samples of a loop's stack")
@pytest.mark.heavy
def test_a_backward_through_kept_graphs_is_named_with_its_line(tmp_path):
    torch.set_num_threads(1)
    memory, head = torch.nn.GRU(16, 64, batch_first=True), torch.nn.Linear(64, 16)
    with GpuUtilMonitor(tmp_path, framework="torch", report=False) as monitor:
        for text in monitor.batches(torch.randn(32, 4, 120, 16)):
            state = torch.zeros(1, 4, 64)
            for start in range(0, 120, 8):
                hidden, state = memory(text[:, start : start + 8], state)
                head(hidden).square().mean().backward(retain_graph=True)
    [recording] = read_recordings(tmp_path)
    [finding] = [found for found in diagnose(recording)["findings"] if found["cause"] == "slow_steps"]
    assert finding["id"] == "slow_steps:kept_graph" and "?" in finding["advice"]["text"]
    assert "test_kept_graphs.py, line 23) goes backward with retain_graph" in finding["advice"]["text"]
    assert finding["evidence"]["kept_pct"] > 67 and not finding["saves_s"]


def found(samples=95, backward=0.88, kept=0.88):
    """Return the ids of findings of slow steps, of a loop whose stack was sampled so."""
    calls = {"samples": samples, "on_core": 0.9, "parts": {"backward": backward, "forward": 0.95 - backward}}
    run = Generated(
        framework={"name": "torch", "backend": "torch", "device": "cpu"},
        fit={"loop": "custom", "python_in_steps": {**calls, "keeps_at": "train (a.py, line 5)", "kept": kept}},
    )
    run.steps(60, step_ms=200)
    return [finding["id"] for finding in findings_of(run.diagnose(), cause="slow_steps")]


@pytest.mark.parametrize(
    "seen", [{}, {"samples": 60, "backward": 0.9}, {"kept": 0.5}, {"samples": 300, "backward": 0.75}]
)
def test_a_share_that_no_usual_backward_has_is_enough(seen):
    assert found(**seen) == ["slow_steps:kept_graph"]


@pytest.mark.parametrize("seen", [{"samples": 19}, {"samples": 30, "backward": 0.8}, {"backward": 0.66}, {"kept": 0.2}])
def test_few_samples_usual_backwards_and_graphs_that_are_let_go_are_no_finding(seen):
    assert found(**seen) == []


def steps(loss, last):
    loss.backward(retain_graph=True)
    loss.backward(  # the next graph
        retain_graph=True
    )
    loss.backward(retain_graph=last < 3)
    loss.backward(retain_graph=last)
    loss.backward(retain_graph=False)
    loss.backward()


def test_the_argument_is_read_in_the_source():
    first = steps.__code__.co_firstlineno
    assert [line for line in range(1, 9) if keeps_graph(steps.__code__, first + line)] == [1, 2, 3, 4, 5]
