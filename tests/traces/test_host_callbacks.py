"""Calls of the host from inside the compiled step: prints, py_function, JAX's callbacks."""

import pytest
from xspace_builder import Kernel, On, repeated


def trace(explain, name: str, took_us: float, gpu: bool = True, pipeline: bool = False) -> list[dict]:
    """The findings of steps of 10 ms of which a call of the host takes a part, on a thread of the executor."""
    worker = "tf_Compute/0"
    parts = [
        On("python", "FunctionRun", 50, 20, {"id": 1_000}),
        On(worker, "ExecutorState::Process", 90, took_us + 20, {"id": 5_000 if pipeline else 1_000}),
        On(worker, name, 100, took_us),
        *([Kernel("gemm", 120 + took_us, 9_800 - took_us)] * gpu),
    ]
    return explain(repeated(20, 10_000, *parts))["findings"]


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
def test_they_are_named_with_their_share_of_the_step(explain, name, gpu):
    (finding,) = trace(explain, name, 3_000, gpu)
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
def test_short_ones_and_others_are_none(explain, name, took_us):
    assert "host_callback" not in [f["cause"] for f in trace(explain, name, took_us)]


def test_host_code_of_the_input_pipeline_is_none(explain):
    found = trace(explain, "EagerPyFunc:EagerPyFunc", 1_500, pipeline=True)
    assert "host_callback" not in [finding["cause"] for finding in found]
