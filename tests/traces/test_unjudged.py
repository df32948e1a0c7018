"""What a trace is no evidence of: idle time outside steps, a handful of kernels, empty planes."""

import pytest
from xspace_builder import Gpu, Space

from gpu_util_callback.report.screen import Detail
from gpu_util_callback.report.trace import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse


@pytest.fixture
def analysis_of(tmp_path):
    def make(space):
        path = tmp_path / "host.xplane.pb"
        path.write_bytes(space.bytes())
        return analyse(read_trace(path))

    return make


def work(steps: int, kernels: int, marked: bool) -> Space:
    """GPU 0 computes for 1 ms in every 50 ms."""
    space = Space()
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(steps):
        at = step * 50_000
        if marked:
            python.event("train", at, 49_900, step_num=step, _r=1)
        for k in range(kernels):
            gpu.launch("gemm_a", at + 10 + k * 40, at + 20 + k * 40, 1_000 // kernels - 1)
        python.event("SaveTheWorld", at + 2_000, 47_000)
    return space


def causes(analysis) -> list[str]:
    return [f["cause"] for f in analysis.findings]


def test_idle_time_outside_steps_is_not_judged(analysis_of):
    assert "host_stall" in causes(analysis_of(work(4, 25, marked=True)))
    analysis = analysis_of(work(4, 25, marked=False))
    assert analysis.findings == []
    assert any(p.startswith("no steps in the trace") for p in analysis.problems)
    text = render(analysis, width=100)
    assert "- idle " in text and "idle: " not in text
    assert "Nothing found" not in text


def test_a_few_kernels_are_too_little_to_judge(analysis_of):
    analysis = analysis_of(work(1, 2, marked=True))
    assert analysis.findings == []
    assert any("2 kernels on the busiest GPU" in p for p in analysis.problems)
    # As few, but the same in every step: that is how a step compiled to one kernel looks.
    assert "host_stall" in causes(analysis_of(work(4, 1, marked=True)))


def test_an_empty_plane_is_no_finding(analysis_of):
    space = work(4, 25, marked=True)
    space.gpu(1)
    analysis = analysis_of(space)
    assert "gpus_unused" not in causes(analysis)
    assert any("no events of GPU 1: idle, or not recorded" in p for p in analysis.problems)


def test_seconds_are_those_of_all_steps_together(analysis_of):
    text = render(analysis_of(work(4, 25, marked=True)), width=100)
    assert "in all: kernels" in text and "Its steps, 200 ms" in text
    assert "196 ms of 200 ms" in text


@pytest.mark.parametrize(
    "name",
    [
        "nsys/mock.sqlite",
        "kineto/unit/test_no_profilerstep.json",
        "xplane/v100x8_tf24_bert_multiworker.xplane.pb",
    ],
)
def test_references_that_prove_nothing(reference, name):
    analysis = analyse(read_trace(reference(name)))
    assert analysis.findings == []
    assert any("idle time is not analyzed" in p for p in analysis.problems)


def test_what_two_processes_share_is_said_once(reference):
    analysis = analyse(read_trace(reference("nsys/h100_2gpu_1s.sqlite")))
    (finding,) = analysis.findings
    assert (finding["cause"], finding["gpus"]) == ("transfer_bound", [0, 1])
    assert finding["lost_s"] == pytest.approx(0.921, abs=0.001)
    text = render(analysis, width=100)
    assert "GPU 0, 1: Copies that nothing hides" in text
    assert "GPU 0  GPU" not in text


def test_a_gpu_of_unknown_model_is_named_by_its_compute_capability(reference):
    name = "xplane/v100x8_tf24_bert_multiworker.xplane.pb"
    text = render(analyse(read_trace(reference(name))), width=100, detail=Detail(all=True))
    assert "GPU 4  compute capability 7.0" in text
