"""What a trace is evidence of without steps, or with a handful of kernels, or an empty plane."""

import pytest
from xspace_builder import Gpu, Kernel, On, Space, repeated

from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse


@pytest.fixture
def analysis_of(tmp_path):
    def make(space):
        path = space.write(tmp_path / "host.xplane.pb")
        return analyse(read_trace(path))

    return make


def work(steps: int, kernels: int, marked: bool = True) -> Space:
    """GPU 0 computes for 1 ms in every 50 ms."""
    gemms = [Kernel("gemm_a", 20 + k * 40, 1_000 // kernels - 1) for k in range(kernels)]
    return repeated(steps, 50_000, *gemms, On("python", "SaveTheWorld", 2_000, 47_000), marked=marked)


def causes(analysis) -> list[str]:
    return [f["cause"] for f in analysis.findings]


def test_without_steps_idle_time_between_the_first_and_the_last_work_is_judged(analysis_of):
    marked = analysis_of(work(4, 25))
    assert "host_stall" in causes(marked)
    assert "196 ms of 200 ms" in render(marked, width=100), "of all steps together"
    analysis = analysis_of(work(4, 25, marked=False))
    (finding,) = analysis.findings
    assert finding["cause"] == "host_stall" and finding["lost_s"] == pytest.approx(0.147, abs=0.001)
    assert finding["evidence"]["host_activity"] == "SaveTheWorld"
    assert any(p.startswith("no steps in the trace") for p in analysis.problems)
    text = render(analysis, width=100)
    assert "no steps found: from the first to the last GPU work, 151 ms" in text
    assert "idle: host 147 ms" in text


def test_a_gpu_that_idles_is_never_without_a_verdict(analysis_of):
    """Nobody traced the host: why the GPU idled is unknown, that it did is not."""
    space = Space()
    gpu = space.gpu(0).line("Stream #13(Compute)", 13)
    for k in range(40):
        gpu.event("gemm", k * 1_000, 300, correlation_id=k + 1)
    analysis = analysis_of(space)
    assert analysis.findings == []
    assert analysis.verdict == (
        "Kernels ran only 31 % of the time between the first "
        "and the last GPU work, no single cause: 69 % reasons that the trace does "
        "not show."
    )


def test_a_loss_of_a_millisecond_in_one_step_is_none(analysis_of):
    space = Space()
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    python.event("train", 0, 3_000, step_num=0, _r=1)
    for k in range(20):
        at = k * 90 + (1_100 if k >= 10 else 0)
        gpu.launch("gemm", at, at + 8, 80)
    python.event("SaveTheWorld", 900, 1_050)
    analysis = analysis_of(space)
    assert analysis.findings == []
    assert analysis.verdict.startswith("Kernels ran only 5")


def test_a_few_kernels_are_too_little_to_judge(analysis_of):
    analysis = analysis_of(work(1, 2))
    assert analysis.findings == []
    assert any("2 kernels on the busiest GPU" in p for p in analysis.problems)
    # As few, but the same in every step: that is how a step compiled to one kernel looks.
    assert "host_stall" in causes(analysis_of(work(4, 1)))


def test_an_empty_plane_is_no_finding(analysis_of):
    space = work(4, 25)
    space.gpu(1)
    analysis = analysis_of(space)
    assert "gpus_unused" not in causes(analysis)
    assert any("no events of GPU 1: idle, or not recorded" in p for p in analysis.problems)
