"""What a trace shows of a program's start is said to be that, and promised nothing for."""

import pytest
from test_kineto_layouts import event, kernel, launch, write
from xspace_builder import Copy, Gpu, Kernel, Space, repeated

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

MS = 1_000


def steps_of(first_us: float, count: int, number: int = 100) -> list[dict]:
    """Steps of 10 ms that fill the GPU."""
    events = []
    for step in range(count):
        for k in range(10):
            number += 1
            at = first_us + step * 10 * MS + k * MS
            events += [launch(at, 5, number), kernel("ampere_sgemm", at + 10, 980, number)]
    return events


def test_the_start_of_cuda_is_paid_once(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 1_100 * MS),
        event("cuda_runtime", "cudaFree", 2 * MS, 980 * MS),
        *steps_of(990 * MS, 10),
    ]
    (finding,) = analyse(read_trace(write(tmp_path, events))).findings
    assert (finding["id"], finding["evidence"]["host_activity"]) == ("host_stall:start_up", "cudaFree")
    assert finding["lost_s"] == pytest.approx(0.98, rel=0.01) and finding["saves_s"] == 0
    assert "cudaFree takes 980 ms, once" in finding["advice"]["text"]
    assert "schedule(wait=1, warmup=3" in finding["advice"]["code"]


def test_the_first_use_of_a_library_is_paid_once_and_the_rest_is_judged_without_it(tmp_path):
    events = []
    for step, took in enumerate([631, 2, 2, 2, 2]):
        start = step * 40 * MS + (step > 0) * 631 * MS
        events += [
            event("user_annotation", f"ProfilerStep#{step}", start, 38 * MS + took * MS),
            event("cpu_op", "aten::conv2d", start, took * MS + 20),
            event("cpu_op", "aten::cudnn_convolution", start + 10, took * MS),
            *steps_of(start + took * MS, 3, number=1_000 * (step + 1)),
        ]
    (finding,) = analyse(read_trace(write(tmp_path, events))).findings
    assert finding["id"] == "host_stall:start_up"
    assert finding["evidence"]["host_activity"] == "aten::cudnn_convolution"
    assert finding["lost_s"] == pytest.approx(0.631, rel=0.01)


def test_an_op_that_is_always_slow_is_no_start_up(tmp_path):
    events = []
    for step in range(5):
        start = step * 100 * MS
        events += [
            event("user_annotation", f"ProfilerStep#{step}", start, 99 * MS),
            event("cpu_op", "preprocess", start, 68 * MS),
            *steps_of(start + 69 * MS, 3, number=1_000 * (step + 1)),
        ]
    (finding,) = analyse(read_trace(write(tmp_path, events))).findings
    assert (finding["id"], finding["evidence"]["host_activity"]) == ("host_stall", "preprocess")


@pytest.mark.parametrize("marked", [False, True])
def test_a_model_is_uploaded_once_where_no_step_is_known(tmp_path, marked):
    space = Space()
    worker = space.host.line("worker", 2)
    gpu = Gpu(space, 0, worker)
    if marked:
        space.host.line("python", 1).event("train", 0, 600 * MS, step_num=3, _r=1)
    gpu.launch("fill", 5, 7, 2)
    for k in range(20):
        at = k * 20 * MS + 10
        gpu.copy("H2D", at, at + 10, 19 * MS, size=680_000_000, memory="pageable")
    for k in range(40):
        at = 400 * MS + k * 5 * MS
        gpu.launch("gemm", at, at + 10, 4_900)
    path = space.write(tmp_path / "host.xplane.pb")
    (finding,) = analyse(read_trace(path)).findings
    assert finding["cause"] == "transfer_bound"
    once = "The upload before the kernels takes" in finding["title"]
    assert once != marked, "a step begins with the copy of its batch"
    if once:
        assert finding["saves_s"] == 0 and "atch" not in finding["advice"]["text"]


@pytest.mark.parametrize(
    ("kernel_us", "pause_us", "copied", "cause"),
    [(1_000, 9_000, True, "transfer_bound"), (20, 180, False, "launch_bound"), (4_000, 100, False, "no_tensor_cores")],
)
def test_words_for_a_program_that_trains_nothing(tmp_path, kernel_us, pause_us, copied, cause):
    parts = [Kernel("volta_sgemm_128x64_nn", 10, kernel_us), *[Copy("H2D", MS, MS + 100, 8_000, 64_000_000)] * copied]
    space = repeated(100, kernel_us + pause_us, *parts, marked=False, capability=7)
    found = analyse(read_trace(space.write(tmp_path / "host.xplane.pb"))).findings
    (finding,) = [one for one in found if one["cause"] == cause]
    for word in ("atch", "prefetch", "image", "train", "Train", "step", "loss"):
        assert word not in finding["advice"]["text"] + finding["advice"]["code"]
