"""Public PyTorch traces with known answers, through the public JSON."""

import json

import pytest

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.breakdown import CATEGORIES
from gpu_util_callback.traces.diagnosed import analyse

NS = 1.01e-6  # a nanosecond in milliseconds
ROLES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other")


@pytest.fixture
def trace_json(reference):
    def load(name: str) -> dict:
        result = analyse(read_trace(reference(f"kineto/{name}"))).to_json()
        result = json.loads(json.dumps(result, allow_nan=False))
        assert result["format"] == "kineto"
        for step in result["steps"]:
            for gpu in step["gpus"]:
                parts = [gpu[f"{c}_ms"] for c in CATEGORIES]
                assert min(parts) >= 0
                assert sum(parts) == pytest.approx(step["duration_ms"], abs=1e-9)
        return result

    return load


def causes(result: dict) -> list[str]:
    return [f["cause"] for f in result["findings"]]


def rounded(row: dict) -> dict:
    return {role: round(row[f"{role}_us"]) for role in ROLES if row[f"{role}_us"]}


def test_v100_resnet50(trace_json):
    result = trace_json("v100_resnet50_num_workers_0.json.gz")
    compat = result["compat"]
    assert [s["step"] for s in compat["steps"]] == [5, 6, 7, 8, 9, 10]
    assert compat["gpu_utilization_pct"] == pytest.approx(55.51, abs=0.005)
    assert compat["sm_efficiency_pct"] == pytest.approx(54.68, abs=0.005)
    assert compat["occupancy_pct"] == pytest.approx(49.13, abs=0.005)
    assert compat["tensor_core_pct"] == 0
    mean = compat["mean"]
    assert round(mean["total_us"]) == 177592
    assert rounded(mean) == {
        "kernel": 98589,
        "memcpy": 1915,
        "memset": 89,
        "runtime": 2908,
        "dataloader": 59262,
        "cpu": 13674,
        "other": 1156,
    }
    for step in compat["steps"]:
        assert sum(step[f"{role}_us"] for role in ROLES) == pytest.approx(step["total_us"])
    assert [s["step"] for s in result["steps"]] == [5, 6, 7, 8, 9, 10]
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
    compat = result["compat"]
    assert compat["gpu_utilization_pct"] == pytest.approx(50)
    assert compat["sm_efficiency_pct"] == pytest.approx(34.1667, abs=1e-4)
    assert compat["occupancy_pct"] == pytest.approx(0.55)
    assert [d["index"] for d in result["devices"]] == [1]


def test_unit_all_categories(trace_json):
    (step,) = trace_json("unit/test_all_categories.json")["compat"]["steps"]
    assert step["total_us"] == 400
    assert rounded(step) == {
        "kernel": 15, "memcpy": 10, "memset": 5, "runtime": 30, "dataloader": 180, "cpu": 35,
        "other": 125,
    }  # fmt: skip


def test_unit_multiple_steps(trace_json):
    result = trace_json("unit/test_multiple_profilersteps_no_overlap.json")
    first, second = result["compat"]["steps"]
    assert (first["step"], first["total_us"]) == (1, 220)
    assert rounded(first) == {"memcpy": 40, "runtime": 5, "cpu": 55, "other": 120}
    assert (second["step"], second["total_us"]) == (2, 260)
    assert rounded(second) == {"kernel": 200, "runtime": 5, "cpu": 45, "other": 10}


def test_unit_no_step(trace_json):
    result = trace_json("unit/test_no_profilerstep.json")
    assert [s["total_us"] for s in result["compat"]["steps"]] == [320]
    assert len(result["steps"]) == 1


def test_unit_pure_cpu(trace_json):
    result = trace_json("unit/test_pure_cpu.json")
    assert [s["total_us"] for s in result["compat"]["steps"]] == [200, 100]
    assert result["compat"]["gpu_utilization_pct"] is None
    assert result["devices"] == []
    assert [s["step"] for s in result["steps"]] == [1, 2]


def test_unit_tensor_core(trace_json):
    assert trace_json("unit/test_tensor_core.json")["compat"]["tensor_core_pct"] == 60


def test_unit_distributed(trace_json):
    result = trace_json("unit/test_distributed_nccl_rank0.json")
    assert "communication_bound" in causes(result)
    assert result["devices"][0]["collective_busy_ms"] == pytest.approx(1.572)
