"""A trace's advice is in the words of the framework that it shows, or in none."""

from types import SimpleNamespace

import pytest

from gpu_util_callback.traces.hostside import wording


@pytest.mark.parametrize(
    "format, names, framework",
    [
        ("kineto", ["aten::conv2d", "ProfilerStep#5"], "torch"),
        ("kineto", ["PjitFunction(step)"], "jax"),  # JAX's trace for the trace viewer
        ("xplane", ["PjitFunction(step)", "jit_step:XLA GPU module"], "jax"),
        ("xplane", ["ExecutorState::Process", "IteratorGetNextOp::DoCompute"], "tensorflow"),
        ("xplane", ["IteratorGetNextOp::DoCompute", "PjitFunction(step)"], "jax"),
        ("nsys", ["cudaLaunchKernel"], ""),
    ],
)
def test_the_framework_is_known_by_its_calls(format, names, framework):
    trace = SimpleNamespace(format=format, names=SimpleNamespace(strings=names))
    assert wording(trace).framework == framework
