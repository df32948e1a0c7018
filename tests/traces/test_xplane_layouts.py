"""What NVIDIA, JAX and several hosts write, built by hand, with known causes."""

import pytest
import trace_oracle
from trace_oracle import causes
from xspace_builder import Gpu, Space, marked

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces import read_trace


def shares(result: dict, index: int = 0) -> dict[str, float]:
    total = sum(s["duration_ms"] for s in result["steps"])
    rows = [g for s in result["steps"] for g in s["gpus"] if g["index"] == index]
    return {c: sum(r[f"{c}_ms"] for r in rows) / total for c in CATEGORIES}


def test_pageable_copies_that_nothing_hides(explain):
    space, python, gpu = marked(10, 10_000)
    for step in range(10):
        at = step * 10_000
        gpu.copy("H2D", at + 10, at + 20, 6_000, size=64 << 20, memory="pageable")
        gpu.launch("nvjet_hsh_128", at + 6_015, at + 6_025, 3_900, tf_op="model/dense/MatMul:MatMul")
    python.event("FunctionRun", 5, 20, _r=1, id=1)
    result = explain(space)
    found = shares(result)
    assert found["copy_h2d"] == pytest.approx(0.6, abs=0.01)
    assert found["kernel"] == pytest.approx(0.39, abs=0.01)
    assert causes(result)[0] == "transfer_bound"
    evidence = result["findings"][0]["evidence"]
    assert evidence["pageable_pct"] == 100
    assert evidence["gb_per_s"] == pytest.approx((64 << 20) / 6e-3 / 1e9, rel=1e-3)
    assert "pinned" in result["findings"][0]["advice"]["text"].lower()
    copies = result["copies"][0]
    assert (copies["direction"], copies["memory"], copies["count"]) == ("h2d", "pageable", 10)
    assert result["kernels"][0]["op"] == "model/dense/MatMul"
    assert result["kernels"][0]["tensor_core"] == "yes"
    assert result["kernels"][0]["registers"] == 64
    assert result["kernels"][0]["occupancy_pct"] == 75


@pytest.mark.parametrize("name", ["H2D Dispatch", "BufferFromHostBuffer::H2D_staging_copy"])
def test_idle_time_in_which_the_host_makes_a_copy_ready_belongs_to_the_copy(explain, name):
    """XLA moves a batch into pinned memory on a thread of its own, while Python waits for the step before."""
    space, python, gpu = marked(10, 10_000)
    worker = space.host.line("pjrt_async_work_runner/1", 3)
    for step in range(10):
        at = step * 10_000
        python.event("PjitFunction(train_step)", at + 5, 9_000)
        worker.event(name, at + 100, 6_900)
        gpu.copy("H2D", at + 6_995, at + 7_000, 2_000, size=64 << 20)
        gpu.launch("nvjet_hsh_128", at + 9_005, at + 9_010, 900)
    result = explain(space)
    found = shares(result)
    assert found["copy_h2d"] == pytest.approx(0.2 + 0.69, abs=0.01)
    assert found["idle_host"] + found["idle_launch"] + found["idle_sync"] < 0.03
    assert causes(result) == ["transfer_bound"]
    assert result["gaps"][0]["cause"] == "copy_h2d"


def test_making_a_copy_ready_explains_no_idle_time_before_a_kernel(explain):
    """The next batch is made ready while the host has not launched the kernels of this one."""
    space, _, gpu = marked(10, 10_000)
    worker = space.host.line("pjrt_async_work_runner/1", 3)
    for step in range(10):
        at = step * 10_000
        worker.event("H2D Dispatch", at + 100, 6_900)
        gpu.launch("nvjet_hsh_128", at + 7_995, at + 8_000, 1_500)
        gpu.copy("H2D", at + 8_010, at + 8_020, 1_000, size=64 << 20)
    found = shares(explain(space))
    assert found["copy_h2d"] == 0
    assert found["idle_host"] > 0.7


def test_a_copy_made_ready_for_another_gpu_explains_no_idle_time(explain):
    """Threads make the batch of one GPU after the other ready, and no event says for which it is."""
    space, _, first = marked(10, 10_000)
    second = Gpu(space, 1, space.host.line("tf_Compute/2", 4))
    worker = space.host.line("pjrt_async_work_runner/1", 3)
    for step in range(10):
        at = step * 10_000
        worker.event("H2D Dispatch", at + 100, 7_800)
        for gpu in (first, second):
            gpu.copy("H2D", at + 7_995, at + 8_000, 10, size=1 << 10)
            gpu.launch("nvjet_hsh_128", at + 8_005, at + 8_015, 1_900)
    result = explain(space)
    for index in (0, 1):
        found = shares(result, index)
        assert found["copy_h2d"] < 0.01
        assert found["idle_host"] > 0.7


def test_launch_bound(explain):
    space = Space()
    space.steps(5, 20_000)
    gpu = Gpu(space, 0, space.host.line("python-dispatch", 2))
    for step in range(5):
        for k in range(198):
            at = step * 20_000 + 50 + k * 100
            gpu.launch(f"kernel_{k % 7}", at, at + 9, 6)
    result = explain(space)
    found = shares(result)
    assert found["idle_launch"] > 0.85
    assert causes(result) == ["launch_bound"]
    launches = result["launches"][0]
    assert launches["linked"] == launches["kernels"] == 990
    assert launches["short_kernels_pct"] == 100
    assert launches["delay_us"]["p50"] == pytest.approx(4)
    assert launches["call_us"]["p50"] == pytest.approx(5)


def test_sync_bound(explain):
    space, python, gpu = marked(20, 1_000)
    for step in range(20):
        at = step * 1_000
        # The host launches, waits for the GPU, reads the loss, and only then goes on.
        gpu.launch("gemm_a", at + 300, at + 310, 500)
        python.event("cuStreamSynchronize", at + 320, 495)
    result = explain(space)
    found = shares(result)
    assert found["idle_sync"] > 0.4
    assert found["idle_host"] < 0.1
    assert causes(result)[0] == "sync_bound"


def test_a_blocking_copy_back_is_a_synchronization(explain):
    space, _, gpu = marked(10, 1_000)
    for step in range(10):
        at = step * 1_000
        gpu.launch("gemm_a", at + 300, at + 310, 500)
        gpu.copy("D2H", at + 320, at + 812, 2, size=4, memory="pageable", call_duration_us=496)
    assert shares(explain(space))["idle_sync"] > 0.4


def test_reading_a_result_back_is_a_synchronization_without_any_call_that_waits(explain):
    """TensorFlow polls for the copy's end: no synchronising call is in the trace."""
    space, _, gpu = marked(10, 1_000)
    for step in range(10):
        at = step * 1_000
        gpu.launch("gemm_a", at + 300, at + 310, 500)
        gpu.copy("D2H", at + 320, at + 812, 2, size=4, memory="pinned")
    found = shares(explain(space))
    assert found["idle_sync"] > 0.4
    assert found["idle_host"] < 0.05


def test_kernels_without_a_launch_are_told(explain):
    space = Space()
    space.steps(2, 1_000)
    stream = space.gpu(0).line("Stream #7(Compute)", 7)
    for k in range(10):
        stream.event("gemm_a", k * 100, 50)
    assert any("10 of 10 kernels have no launch call" in p for p in explain(space)["problems"])


def test_input_wait_counts_only_while_the_gpu_is_idle(explain):
    space = Space()
    space.steps(5, 10_000)
    fetch = space.host.line("tf_data_iterator_get_next/3", 3)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(5):
        at = step * 10_000
        fetch.event("IteratorGetNextOp::DoCompute", at + 100, 6_000, id=step, iter_num=0)
        # Still busy with the step before for the first half of the wait.
        gpu.launch("gemm_b", at - 1_000 if step else 0, at + 100, 3_000)
        gpu.launch("gemm_a", at + 6_110, at + 6_120, 3_870)
    result = explain(space)
    assert [s["host_input_ms"] for s in result["steps"]] == pytest.approx([6.0] * 5)
    assert [s["input_wait_ms"] for s in result["steps"]] == pytest.approx([3.0] * 5)
    assert causes(result)[0] == "input_bound"


def test_fetching_ahead_between_short_launches_is_no_input_wait(explain):
    space = Space()
    space.steps(5, 10_000)
    fetch = space.host.line("tf_data_iterator_get_next/3", 3)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(5):
        at = step * 10_000
        fetch.event("IteratorGetNextOp::DoCompute", at + 50, 9_900, id=step)
        for k in range(99):
            gpu.launch("small", at + 60 + k * 100, at + 70 + k * 100, 10)
    result = explain(space)
    assert shares(result)["idle_input"] < 0.03
    assert causes(result) == ["launch_bound"]


def test_waits_of_functions_inside_the_pipeline_do_not_count(explain):
    space = Space()
    space.steps(3, 10_000)
    worker = space.host.line("tf_data_private_threadpool/1", 4)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(3):
        at = step * 10_000
        worker.event("InstantiatedCapturedFunction::Run", at, 9_000, id=70 + step)
        worker.event("IteratorGetNextOp::DoCompute", at + 10, 8_000, id=70 + step)
        gpu.launch("gemm_a", at + 9_000, at + 9_010, 900)
    assert [s["host_input_ms"] for s in explain(space)["steps"]] == [0, 0, 0]


def test_cuda_graph_replay(explain):
    space = Space()
    space.steps(3, 1_000)
    host = space.host.line("tf_XLAEigen/1", 2)
    plane = space.gpu(0)
    stream = plane.line("Stream #7(Compute)", 7)
    for step in range(3):
        at = step * 1_000
        host.event("cuGraphLaunch (CudaGraph:5)", at + 5, 20, correlation_id=50 + step)
        for k in range(10):  # one launch, ten kernels, all with the launch's correlation
            stream.event(
                "fusion_3",
                at + 40 + k * 95,
                94,
                correlation_id=50 + step,
                cuda_graph_id=5,
                cuda_graph_node_id=k,
                kernel_details="regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:64,1,1 occ_pct:25",
            )
    result = explain(space)
    assert result["launches"][0]["graph_kernels"] == 30
    assert result["launches"][0]["linked"] == 30
    assert result["devices"][0]["kernels"] == 30
    assert causes(result) == []
    assert shares(result)["idle_launch"] < 0.1


def test_dropped_events_and_missing_privileges_are_told(explain):
    space = Space()
    space.steps(2, 1_000)
    space.message.warnings.append(b"Detected GPU events dropped on host-a: 1234 driver events")
    space.message.errors.append(b"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nsee the docs")
    space.gpu(0)  # written for every visible GPU, even without events
    result = explain(space)
    assert any("dropped" in p for p in result["problems"])
    assert any("INSUFFICIENT_PRIVILEGES see" in p for p in result["problems"])
    assert result["devices"] == []
    assert len(result["steps"]) == 2


def test_several_hosts_are_aligned_and_kept_apart(explain):
    spaces = []
    for number in range(2):
        space = Space(host=f"worker-{number}", start_ns=1_800_000_000_000_000_000 + number * 10**6)
        space.steps(3, 5_000)
        gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
        for step in range(3):
            gpu.launch("gemm_a", step * 5_000 + 1, step * 5_000 + 10, 4_900 - 1000 * number)
        spaces.append(space)
    result = explain(*spaces)
    assert [p["host"] for p in result["processes"]] == ["worker-0", "worker-1"]
    assert [d["index"] for d in result["devices"]] == [0, 1]
    assert [(s["process"], s["step"]) for s in result["steps"]] == [
        (0, 100),
        (0, 101),
        (0, 102),
        (1, 100),
        (1, 101),
        (1, 102),
    ]
    starts = [s["start_ms"] for s in result["steps"]]
    assert starts[3] - starts[0] == pytest.approx(1.0)  # the second host's clock began later


def test_lines_that_tensorflow_derived_are_not_counted_again(explain):
    space, _, gpu = marked(2, 1_000)
    gpu.launch("gemm_a", 1, 10, 900)
    for name, key in (("Steps", -559038737), ("TensorFlow Ops", -559038734), ("XLA Ops", 3)):
        gpu.plane.line(name, key).event("gemm_a", 10, 900)
    gpu.plane.line("something new", -559038500).event("gemm_a", 10, 900)
    assert explain(space)["devices"][0]["kernels"] == 1


def test_iterations_and_calls_are_steps_where_no_marker_is(explain, tmp_path):
    space = Space()
    python = space.host.line("python", 1)
    for step in range(6):
        python.event("PjitFunction(train_step)", step * 1_000, 400)
        python.event("PjitFunction(train_step)", step * 1_000 + 10, 300)  # nested, as JAX does
    result = explain(space)
    assert [s["step"] for s in result["steps"]] == list(range(6))
    assert result["processes"][0]["steps_from"] == "call"

    space = Space()
    fetch = space.host.line("tf_data_iterator_get_next/1", 1)
    for step in range(4):
        fetch.event("IteratorGetNextOp::DoCompute", step * 1_000, 300)
    result = explain(space)
    assert len(result["steps"]) == 4
    assert result["processes"][0]["steps_from"] == "iteration"


def test_gpu_events_alone_are_one_step_and_say_what_they_cannot(explain):
    space = Space()
    stream = space.gpu(0).line("Stream #7(Compute)", 7)
    stream.event("gemm_a", 100, 50)
    stream.event("gemm_a", 300, 50)
    result = explain(space)
    (step,) = result["steps"]
    assert step["duration_ms"] == pytest.approx(0.25)
    # Nobody recorded the host: why the GPU was idle is unknown, and said so.
    assert step["gpus"][0]["other_ms"] == pytest.approx(0.15)
    assert result["launches"][0]["delay_us"] is None


def test_aggregated_events_have_no_place_in_time(explain):
    space = Space()
    space.steps(2, 1_000)
    stream = space.gpu(0).line("Stream #7(Compute)", 7)
    stream.event("gemm_a", 0, 50)
    total = stream.event("gemm_a", 0, 900)
    total.num_occurrences = 12  # replaces the offset: they are one or the other
    result = explain(space)
    assert result["devices"][0]["kernels"] == 1
    assert result["devices"][0]["any_busy_ms"] == pytest.approx(0.05)


def test_times_since_the_epoch_are_read_too(explain):
    space = Space(start_ns=None)
    base = 1_700_000_000_000_000_000
    python = space.host.line("python", 1, timestamp_ns=base)
    for step in range(3):
        python.event("train", step * 1_000, 990, step_num=step, _r=1)
    result = explain(space)
    assert result["start_ns"] == base
    assert [s["duration_ms"] for s in result["steps"]] == pytest.approx([1.0, 1.0, 0.99])


def test_a_pause_between_windows_belongs_to_no_step(explain):
    space = Space()
    python = space.host.line("python", 1)
    for at in (0, 1_000, 2_000, 500_000, 501_000):
        python.event("train", at, 950, step_num=at // 1000, _r=1)
    durations = [s["duration_ms"] for s in explain(space)["steps"]]
    assert durations == pytest.approx([1.0, 1.0, 0.95, 1.0, 0.95])


def test_the_newest_session_of_a_folder_is_read(tmp_path):
    import os

    for number, name in enumerate(("2026_01_01", "2026_01_02")):
        folder = tmp_path / "plugins" / "profile" / name
        folder.mkdir(parents=True)
        space = Space(host=name)
        space.steps(1 + number, 100)
        (folder / "h.xplane.pb").write_bytes(space.bytes())
        os.utime(folder / "h.xplane.pb", (1_000 + number, 1_000 + number))
    result = trace_oracle.explain(tmp_path)
    assert result["processes"][0]["host"] == "2026_01_02"
    assert any("1 older" in p for p in result["problems"])
    with pytest.raises(UnusableInput, match="no such file"):
        read_trace(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnusableInput, match="no trace in this folder"):
        read_trace(tmp_path / "empty")


def test_tensor_core_finding_needs_certainty(explain):
    def train(name: str, capability: int = 8) -> list[str]:
        space, _, gpu = marked(3, 1_000, compute_cap_major=capability)
        for step in range(3):
            gpu.launch(name, step * 1_000 + 1, step * 1_000 + 10, 980)
        return causes(explain(space))

    assert train("ampere_sgemm_128x64_nn") == ["no_tensor_cores"]
    assert train("ampere_bf16_s16816gemm_bf16_128x64") == []
    assert train("gemm_fusion_dot_1") == []  # unknown is no evidence
    assert train("loop_add_fusion") == []
    assert train("maxwell_sgemm_128x64_nn", capability=6) == []
