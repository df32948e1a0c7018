"""A trace's advice is in the words of the framework that it shows, or in none."""

from types import SimpleNamespace

import pytest

from gpu_util_callback.traces.hostside import wording
from gpu_util_callback.traces.read import read_trace


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


@pytest.mark.parametrize(
    "name, framework",
    [
        ("xplane/mi300x8_jax_conv_raw.xplane.pb", "jax"),
        ("xplane/cpu_tf221_inputbound_10steps.xplane.pb", "tensorflow"),
        ("xplane/v100x8_tf24_bert_multiworker.xplane.pb", "tensorflow"),
        ("kineto/h100_bert_small.json.gz", "torch"),
        ("nsys/h100_2gpu_1s.sqlite", "torch"),
        ("nsys/mock.sqlite", "torch"),
    ],
)
def test_in_public_traces_too(trace_data, name, framework):
    trace = read_trace(trace_data / name)
    assert wording(trace).framework == framework
