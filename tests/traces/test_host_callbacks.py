"""Calls of the host from inside the compiled step: prints, py_function, JAX's callbacks."""

import pytest
from xspace_builder import Gpu, Space

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse


def trace(tmp_path, name: str, took_us: float, gpu: bool = True, pipeline: bool = False):
    space = Space()
    python, worker = space.host.line("python", 1), space.host.line("tf_Compute/1", 2)
    device = Gpu(space, 0, worker) if gpu else None
    for step in range(20):
        at = step * 10_000
        python.event("train", at, 9_990, step_num=step, _r=1)
        python.event("FunctionRun", at + 50, 20, id=1_000 + step)
        worker.event("ExecutorState::Process", at + 90, took_us + 20, id=(5_000 if pipeline else 1_000) + step)
        worker.event(name, at + 100, took_us)
        if device:
            device.launch("gemm", at + 110 + took_us, at + 120 + took_us, 9_800 - took_us)
    path = space.write(tmp_path / "host.xplane.pb")
    return analyse(read_trace(path))


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "StatefulPartitionedCall/PrintV2:PrintV2",
        "PrintV2:PrintV2",
        "model/lambda/EagerPyFunc:EagerPyFunc",
        "PyFunc:PyFunc",
        "debug_print.1",
        "pure_callback.1",
        "xla_ffi_python_gpu_callback",
        "$callback.py:92 pure_callback_impl",
        "$debugging.py:88 debug_callback",
    ],
)
def test_they_are_named_with_their_share_of_the_step(tmp_path, name, gpu):
    (finding,) = trace(tmp_path, name, 3_000, gpu).findings
    assert finding["cause"] == "host_callback"
    assert finding["severity"] == pytest.approx(0.3, abs=0.01)
    assert finding["evidence"]["host_activity"] == name and name in finding["advice"]["text"]


@pytest.mark.parametrize(
    ("name", "took_us"),
    [
        ("PrintV2:PrintV2", 300),  # 3 %
        ("model/print_layer/MatMul:MatMul", 1_500),
    ],
)
def test_short_ones_and_others_are_none(tmp_path, name, took_us):
    assert "host_callback" not in [f["cause"] for f in trace(tmp_path, name, took_us).findings]


def test_host_code_of_the_input_pipeline_is_none(tmp_path):
    analysis = trace(tmp_path, "EagerPyFunc:EagerPyFunc", 1_500, pipeline=True)
    assert "host_callback" not in [finding["cause"] for finding in analysis.findings]
