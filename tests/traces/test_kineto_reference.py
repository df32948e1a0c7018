"""Public PyTorch traces with known answers, through the public JSON."""

import pytest
from trace_oracle import causes, explain

NS = 1.01e-6  # a nanosecond in milliseconds


@pytest.fixture
def trace_json(reference):
    def load(name: str) -> dict:
        result = explain(reference(f"kineto/{name}"))
        assert result["format"] == "kineto"
        return result

    return load


def occupancy_pct(result: dict) -> float:
    """Of the kernels that report it, weighted by their time."""
    known = [k for k in result["kernels"] if k["occupancy_pct"] is not None]
    return sum(k["total_ms"] * k["occupancy_pct"] for k in known) / sum(k["total_ms"] for k in known)


def test_v100_resnet50(trace_json):
    result = trace_json("v100_resnet50_num_workers_0.json.gz")
    assert [s["step"] for s in result["steps"]] == [5, 6, 7, 8, 9, 10]
    (gpu,) = result["devices"]
    # As PyTorch's own plugin showed them: microseconds a step, of kernels, copies and memsets.
    assert gpu["kernel_busy_ms"] / 6 == pytest.approx(98.588667, abs=NS)
    assert gpu["copy_busy_ms"]["h2d"] / 6 == pytest.approx(1.915333, abs=NS)
    assert gpu["memset_busy_ms"] / 6 == pytest.approx(0.089, abs=NS)
    assert occupancy_pct(result) == pytest.approx(49.13, abs=0.005)
    assert {k["tensor_core"] for k in result["kernels"]} == {"no"}
    assert causes(result)[0] == "input_bound"
    assert "no_tensor_cores" in causes(result)
    assert "num_workers" in result["findings"][0]["advice"]["code"]
    other = sum(s["gpus"][0]["other_ms"] for s in result["steps"])
    assert other <= 0.05 * sum(s["duration_ms"] for s in result["steps"])


def test_h100_bert(trace_json):
    result = trace_json("h100_bert_small.json.gz")
    (gpu,) = result["devices"]
    assert gpu["name"] == "NVIDIA H100 80GB HBM3"
    assert gpu["span_ms"] == pytest.approx(3.907825, abs=NS)
    assert gpu["any_busy_ms"] == pytest.approx(0.309438, abs=NS)
    assert gpu["kernel_busy_ms"] == pytest.approx(0.307198, abs=NS)
    assert (gpu["kernels"], gpu["copies"]) == (60, 1)
    assert causes(result) == ["launch_bound"]
    assert result["steps"][0]["step"] == 6
    # cuLaunchKernel is a launch as cudaLaunchKernel is: every kernel has its call.
    assert result["launches"][0]["linked"] == 60
    assert any(k["op"] == "aten::addmm" for k in result["kernels"])


def test_h100_timesformer(trace_json):
    result = trace_json("h100_timesformer.json.gz")
    (gpu,) = result["devices"]
    assert gpu["span_ms"] == pytest.approx(159.992427, abs=NS)
    assert gpu["any_busy_ms"] == pytest.approx(158.433173, abs=1.01e-4)
    (step,) = result["steps"]
    # Nearly always busy over its own span, and yet idle for most of the step.
    assert gpu["any_busy_ms"] / gpu["span_ms"] == pytest.approx(0.99025, abs=1e-5)
    assert step["gpus"][0]["kernel_busy_ms"] / step["duration_ms"] == pytest.approx(0.405, abs=5e-4)
    assert causes(result) == ["host_stall"]
    assert "_preprocess_image" in result["findings"][0]["evidence"]["host_activity"]


def test_unit_gpu_utilization(trace_json):
    result = trace_json("unit/test_gpu_utilization.json")
    (step,) = result["steps"]
    assert step["gpus"][0]["kernel_busy_ms"] / step["duration_ms"] == pytest.approx(0.5)
    assert occupancy_pct(result) == pytest.approx(0.55)
    assert [d["index"] for d in result["devices"]] == [1]


def test_unit_all_categories(trace_json):
    result = trace_json("unit/test_all_categories.json")
    (step,), (gpu,) = result["steps"], result["devices"]
    assert step["duration_ms"] == pytest.approx(0.4)
    assert step["input_wait_ms"] == pytest.approx(0.18)
    assert gpu["kernel_busy_ms"] == pytest.approx(0.015)
    assert gpu["copy_busy_ms"] == {"h2d": pytest.approx(0.01), "d2h": 0, "d2d": 0}
    assert gpu["memset_busy_ms"] == pytest.approx(0.005)


def test_unit_multiple_steps(trace_json):
    result = trace_json("unit/test_multiple_profilersteps_no_overlap.json")
    first, second = result["steps"]
    # A step extends to the next one's marker.
    assert (first["step"], first["duration_ms"]) == (1, pytest.approx(0.25))
    assert first["gpus"][0]["copy_h2d_ms"] == pytest.approx(0.04)
    assert first["gpus"][0]["kernel_ms"] == 0
    assert (second["step"], second["duration_ms"]) == (2, pytest.approx(0.26))
    assert second["gpus"][0]["kernel_ms"] == pytest.approx(0.2)


def test_unit_no_step(trace_json):
    result = trace_json("unit/test_no_profilerstep.json")
    assert [s["duration_ms"] for s in result["steps"]] == [pytest.approx(0.32)]


def test_unit_pure_cpu(trace_json):
    result = trace_json("unit/test_pure_cpu.json")
    assert [s["duration_ms"] for s in result["steps"]] == pytest.approx([0.2, 0.1])
    assert result["devices"] == []
    assert [s["step"] for s in result["steps"]] == [1, 2]


def test_unit_tensor_core(trace_json):
    kernels = trace_json("unit/test_tensor_core.json")["kernels"]
    assert {k["tensor_core"]: k["total_ms"] for k in kernels} == {
        "yes": pytest.approx(0.015),
        "no": pytest.approx(0.01),
    }


def test_unit_distributed(trace_json):
    result = trace_json("unit/test_distributed_nccl_rank0.json")
    assert causes(result) == [], "1.4 ms in one step may be chance"
    assert result["devices"][0]["collective_busy_ms"] == pytest.approx(1.572)
