"""What a trace whose GPU waits for the host is told: who compiled its kernels, which call holds the host."""

import pytest
from test_kineto_layouts import event, kernel, launch, write
from xspace_builder import Gpu, Space

from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

STEPS, KERNELS = 3, 200


def launches(tmp_path, regions=(), kernels=("sm80_gemm",), call="cudaLaunchKernel", inside=1.0, names=()):
    """Steps of 200 kernels of 14 µs, each launched 46 µs after the last one was done.

    Args:
        regions: ranges of the host around the launches of each step.
        inside: share of the launches that they cover.
        names: operations beside the launches.
    """
    events, number, at = [], 0, 0
    for step in range(STEPS):
        begin = at
        for _ in range(KERNELS):
            at, number = at + 60, number + 1
            events += [launch(at, 5, number, call), kernel(kernels[number % len(kernels)], at + 12, 14, number)]
        events += [event("user_annotation", name, begin + 5, inside * (at - begin)) for name in regions]
        events += [event("cpu_op", name, begin + 10, 5) for name in names]
        at += 60
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    return the_launches(analyse(read_trace(write(tmp_path, events))))


def the_launches(analysis) -> str:
    """The text and the code of the advice on launches."""
    (found,) = [finding for finding in analysis.findings if finding["cause"] == "launch_bound"]
    return f"{found['advice']['text']}\n{found['advice']['code']}"


TRITON = "triton_poi_fused_add_mul_0", "triton_red_fused_mean_1"


@pytest.mark.parametrize(
    ("signs", "graph"),
    [
        ({"regions": ["Torch-Compiled Region: 0/0"]}, "reduce-overhead"),
        ({"regions": ["## Call CompiledFxGraph fabc ##"]}, "reduce-overhead"),
        ({"regions": ["CompiledFunction"], "kernels": TRITON}, "reduce-overhead"),
        ({"kernels": TRITON}, "reduce-overhead"),
        ({"regions": ["AOTInductorModel::run"], "kernels": TRITON}, "record them as a CUDA graph"),
        ({"regions": ["nn.Module: GraphModule_0"]}, "record them as a CUDA graph"),
        ({"regions": ["tensorrt::execute_engine"]}, "record them as a CUDA graph"),
    ],
)
def test_a_compiled_model_is_told_of_graphs_not_to_compile(tmp_path, signs, graph):
    said = launches(tmp_path, **signs)
    assert "compiled already" in said and graph in said
    assert "compile the step" not in said and "+ model = torch.compile(model)\n" not in said


def test_a_model_that_is_not_compiled_may_be(tmp_path):
    assert "compile the step" in launches(tmp_path, names=["aten::mm"])


def test_what_is_launched_outside_of_a_compiled_model_is_said(tmp_path):
    said = launches(tmp_path, ["Torch-Compiled Region: 0/0"], inside=0.3, names=["Optimizer.step#AdamW.step"])
    assert "70 % of them are launched outside of it" in said and "fused=True" in said


def test_replayed_graphs_are_told_neither(tmp_path):
    said = launches(tmp_path, ["Torch-Compiled Region: 0/0"], call="cudaGraphLaunch")
    assert "replayed from CUDA graphs already" in said and "compile(" not in said


@pytest.mark.parametrize("name", ["vllm::unified_attention", "sglang/srt/managers/scheduler.py(99): run_batch"])
@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaGraphLaunch"])
def test_a_servers_code_is_nobodys_to_change(tmp_path, name, call):
    said = launches(tmp_path, call=call, names=[name, "aten::mm"])
    assert "torch." not in said and "model =" not in said
    assert ("replayed from CUDA graphs already" if call == "cudaGraphLaunch" else "launch them as one graph") in said


@pytest.mark.parametrize(("kernels_a_call", "compiled"), [(60, True), (1, False)])
def test_jax_is_told_to_compile_only_what_it_runs_one_by_one(explain, kernels_a_call, compiled):
    space = Space()
    space.steps(5, 6_000)
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, python, compute_cap_major=8, compute_cap_minor=0)
    for number in range(300):
        if number % kernels_a_call == 0:
            python.event("PjitFunction(step)", number * 100, 100 * kernels_a_call - 5)
        gpu.launch("gemm", number * 100 + 5, number * 100 + 20, 10)
    (found,) = [finding for finding in explain(space)["findings"] if finding["cause"] == "launch_bound"]
    assert ("jax.jit" in (found["advice"]["code"] or "")) is not compiled


# -- one call that holds the host ------------------------------------------------------------------


def held(tmp_path, call: str, each_us: int = 30_000, op: str = "aten::copy_"):
    """Three steps of 6 ms of kernels, after which the host is held in one call while nothing is queued."""
    events, number, at = [], 0, 0
    for step in range(STEPS):
        begin = at
        for k in range(60):
            number += 1
            events += [launch(begin + 10 * k, 4, number), kernel("gemm", begin + 16 + 101 * k, 100, number)]
        at = begin + 16 + 60 * 101 + 20
        events += [event("cpu_op", op, at - 1, each_us + 2), launch(at, each_us, number + 1, call)]
        number += 1
        if "Memcpy" in call:
            copied = {"device": 0, "stream": 7, "correlation": number, "bytes": 4096}
            name = "Memcpy HtoD (Pageable -> Device)"
            events.append(event("gpu_memcpy", name, at + each_us - 10, 8, pid=0, **copied))
        at += each_us + 50
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    return analyse(read_trace(write(tmp_path, events)))


@pytest.mark.parametrize(
    "call",
    [
        "cudaMemcpyAsync",
        "hipMemcpyWithStream",
        "cudaMalloc",
        "cudaHostAlloc",
        "cuModuleLoadData",
        "cudaLaunchKernel",
        "cuLibraryLoadData",
        "cudaFuncGetAttributes",
    ],
)
def test_a_call_that_holds_the_host_is_named_with_its_duration(tmp_path, call):
    analysis = held(tmp_path, call)
    first = analysis.findings[0]
    assert first["cause"] == "host_stall" and f"3 calls of {call} take 30 ms each" in first["title"]
    assert "aten::copy_" in first["advice"]["text"]
    assert first["evidence"]["seconds_each"] == pytest.approx(0.03)
    assert not [finding for finding in analysis.findings if finding["cause"] == "launch_bound"]
    assert call in render(analysis, width=160)


def test_short_calls_are_launches(tmp_path):
    analysis = held(tmp_path, "cudaMemcpyAsync", each_us=900)
    assert not any("calls of" in finding["title"] for finding in analysis.findings)


def test_a_read_of_a_result_is_not_told_of_pinned_memory(tmp_path):
    (first, *_) = held(tmp_path, "cudaEventQuery", op="aten::item").findings
    assert "pin_memory" not in f"{first['advice']['code']}"
