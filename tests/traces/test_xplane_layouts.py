"""What NVIDIA, JAX and several hosts write, built by hand, with known causes."""

import pytest
import trace_oracle
from trace_oracle import causes
from xspace_builder import FETCH, NEXT, Copy, Gpu, Kernel, On, Space, repeated

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces import limits, read_trace


def shares(result: dict, index: int = 0) -> dict[str, float]:
    total = sum(s["duration_ms"] for s in result["steps"])
    rows = [g for s in result["steps"] for g in s["gpus"] if g["index"] == index]
    return {c: sum(r[f"{c}_ms"] for r in rows) / total for c in CATEGORIES}


def test_pageable_copies_that_nothing_hides(explain):
    kernel = Kernel("nvjet_hsh_128", 6_025, 3_900, op="model/dense/MatMul:MatMul")
    result = explain(repeated(10, 10_000, Copy("H2D", 10, 20, 6_000, COPIED, "pageable"), kernel))
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


XLA = "pjrt_async_work_runner/1"
COPIED = 64 << 20

# What happens in each step, its length in µs, shares of the time (at least, at most), and the causes.
STEPS = {
    # XLA moves a batch into pinned memory on a thread of its own, while Python waits for the step before.
    **{
        f"a copy that the host makes ready: {name}": (
            [
                On("python", "PjitFunction(train_step)", 5, 9_000),
                On(XLA, name, 100, 6_900),
                Copy("H2D", 6_995, 7_000, 2_000, COPIED),
                Kernel("nvjet_hsh_128", 9_015, 900),
            ],
            10_000,
            {"copy_h2d": (0.88, 0.9), "idle_host": (0, 0.02), "idle_launch": (0, 0.005), "idle_sync": (0, 0.005)},
            ["transfer_bound"],
        )
        for name in ("H2D Dispatch", "BufferFromHostBuffer::H2D_staging_copy")
    },
    "the next batch is made ready while the kernels of this one are not launched": (
        [
            On(XLA, "H2D Dispatch", 100, 6_900),
            Kernel("nvjet_hsh_128", 8_000, 1_500),
            Copy("H2D", 8_010, 8_020, 1_000, COPIED),
        ],
        10_000,
        {"copy_h2d": (0, 0), "idle_host": (0.7, 1)},
        ["host_stall"],
    ),
    # Threads make the batch of one GPU after the other ready, and no event says for which it is.
    "copies made ready for two GPUs": (
        [
            On(XLA, "H2D Dispatch", 100, 7_800),
            *(Copy("H2D", 7_995, 8_000, 10, 1 << 10, gpu=gpu) for gpu in (0, 1)),
            *(Kernel("nvjet_hsh_128", 8_015, 1_900, gpu) for gpu in (0, 1)),
        ],
        10_000,
        {"copy_h2d": (0, 0.01), "idle_host": (0.7, 1)},
        ["host_stall"],
    ),
    # The host launches, waits for the GPU, reads the loss, and only then goes on.
    "a call that waits": (
        [Kernel("gemm_a", 310, 500), On("python", "cuStreamSynchronize", 320, 495)],
        1_000,
        {"idle_sync": (0.4, 1), "idle_host": (0, 0.1)},
        ["sync_bound"],
    ),
    "a blocking copy back": (
        [Kernel("gemm_a", 310, 500), Copy("D2H", 320, 812, 2, 4, "pageable", 496)],
        1_000,
        {"idle_sync": (0.4, 1)},
        ["sync_bound"],
    ),
    # TensorFlow polls for the copy's end: no synchronising call is in the trace.
    "a copy back without any call that waits": (
        [Kernel("gemm_a", 310, 500), Copy("D2H", 320, 812, 2, 4)],
        1_000,
        {"idle_sync": (0.4, 1), "idle_host": (0, 0.05)},
        ["sync_bound"],
    ),
    "batches are fetched ahead between short launches": (
        [On(FETCH, NEXT, 50, 9_900, {"id": 0}), *(Kernel("small", 70 + 100 * k, 10) for k in range(99))],
        10_000,
        {"idle_input": (0, 0.03)},
        ["launch_bound"],
    ),
    "a fetch by a function inside the pipeline": (
        [
            On("tf_data_private_threadpool/1", "InstantiatedCapturedFunction::Run", 0, 9_000, {"id": 70}),
            On("tf_data_private_threadpool/1", NEXT, 10, 8_000, {"id": 70}),
            Kernel("gemm_a", 9_010, 900),
        ],
        10_000,
        {"idle_input": (0, 0)},
        ["host_stall"],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_idle_time_belongs_to_what_the_gpu_waits_for(explain, name):
    parts, length_us, expected, found = STEPS[name]
    result = explain(repeated(20, length_us, *parts))
    assert causes(result) == found
    for gpu in result["devices"]:
        held = shares(result, gpu["index"])
        assert not {part: held[part] for part, (low, high) in expected.items() if not low <= held[part] <= high}


def test_launch_bound(explain):
    result = explain(repeated(5, 20_000, *(Kernel(f"kernel_{k % 7}", 59 + k * 100, 6) for k in range(198))))
    assert shares(result)["idle_launch"] > 0.85
    assert causes(result) == ["launch_bound"]
    launches = result["launches"][0]
    assert launches["linked"] == launches["kernels"] == 990
    assert launches["short_kernels_pct"] == 100


def test_kernels_without_a_launch_are_told(explain):
    space = Space()
    space.steps(2, 1_000)
    stream = space.gpu(0).line("Stream #7(Compute)", 7)
    for k in range(10):
        stream.event("gemm_a", k * 100, 50)
    assert any("10 of 10 kernels have no launch call" in p for p in explain(space)["problems"])


def test_input_wait_counts_only_while_the_gpu_is_idle(explain):
    # The GPU is busy with the step before for the first half of the wait.
    kernels = Kernel("gemm_b", 10, 3_090), Kernel("gemm_a", 6_120, 3_870)
    result = explain(repeated(5, 10_000, On(FETCH, NEXT, 100, 6_000, {"id": 0}), *kernels))
    assert [s["host_input_ms"] for s in result["steps"]] == pytest.approx([6.0] * 5)
    assert [s["input_wait_ms"] for s in result["steps"]] == pytest.approx([3.0] * 5)
    assert causes(result)[0] == "input_bound"


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
    result = explain(
        *(
            repeated(3, 5_000, Kernel("gemm_a", 10, 4_900 - 1000 * number), host=f"worker-{number}", start_ns=start_ns)
            for number, start_ns in enumerate((1_800_000_000_000_000_000, 1_800_000_000_001_000_000))
        )
    )
    assert [p["host"] for p in result["processes"]] == ["worker-0", "worker-1"]
    assert [d["index"] for d in result["devices"]] == [0, 1]
    assert [(s["process"], s["step"]) for s in result["steps"]] == [(p, 100 + s) for p in (0, 1) for s in range(3)]
    starts = [s["start_ms"] for s in result["steps"]]
    assert starts[3] - starts[0] == pytest.approx(1.0)  # the second host's clock began later


def test_lines_that_tensorflow_derived_are_not_counted_again(explain):
    space = Space()
    space.steps(2, 1_000)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
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
        return causes(explain(repeated(3, 1_000, Kernel(name, 10, 980), capability=capability)))

    assert train("ampere_sgemm_128x64_nn") == ["no_tensor_cores"]
    assert train("ampere_bf16_s16816gemm_bf16_128x64") == []
    assert train("gemm_fusion_dot_1") == []  # unknown is no evidence
    assert train("loop_add_fusion") == []
    assert train("maxwell_sgemm_128x64_nn", capability=6) == []


def test_what_a_profiler_cannot_mean_is_left_out(explain):
    space = Space()
    python = space.host.line("python", 1)
    python.event("train", 0, 900, step_num=b"\xff\xfe", _r=1)
    stream = space.gpu(0).line("Stream #1(Compute)", 1)
    nameless = stream.event("gemm", 10, 20, kernel_details="regs:x grid:1,2 block:-1,0,0 occ_pct:nan")
    nameless.metadata_id = 999_999
    space.message.hostnames[0] = b"\xff\xff"
    wild = stream.event("gemm", 40, 20)
    wild.offset_ps = wild.duration_ps = 2**62
    stream.event("gemm", 50, 20).duration_ps = -5
    result = explain(space)
    assert result["devices"][0]["kernels"] == 1 and result["kernels"][0]["name"] == "unknown"
    assert any("impossible times" in p for p in result["problems"])


@pytest.mark.parametrize("limit", ["MAX_EVENTS", "MAX_LINES", "MAX_METADATA"])
def test_more_than_can_be_read_is_refused(explain, monkeypatch, limit):
    monkeypatch.setattr(limits, limit, 1)
    with pytest.raises(UnusableInput, match="profile fewer steps"):
        explain(repeated(4, 1_000, Kernel("gemm", 20, 500)))
