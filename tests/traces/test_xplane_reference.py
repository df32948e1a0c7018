"""Public XPlane traces with known answers, read through the public JSON, to 1 µs."""

import pytest
from trace_oracle import causes, explain

from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.recorded import recording_tables

US = 0.001  # milliseconds

_BERT = "v100x8_tf24_bert_multiworker"
_LEGACY = "mi300x8_jax_conv_legacy"
_RAW = "mi300x8_jax_conv_raw"
_CPU = "cpu_tf221_inputbound_10steps"
_SYNTHETIC = "cpu_tf221_inputbound_plus_synthetic_gpu"
_NO_MARKER = "cpu_tf221_no_step_marker"


@pytest.fixture
def trace_json(reference):
    def load(name: str) -> dict:
        return explain(reference(f"xplane/{name}.xplane.pb"))

    return load


def devices(result: dict) -> dict[int, dict]:
    return {d["index"]: d for d in result["devices"]}


def test_v100_bert_with_derived_lines_baked_in(trace_json):
    result = trace_json(_BERT)
    found = devices(result)
    assert sorted(found) == [1, 4, 6]  # devices without events are left out
    one, four, six = found[1], found[4], found[6]
    assert one["any_busy_ms"] == pytest.approx(0.033792, abs=US)
    assert one["copy_busy_ms"]["h2d"] == pytest.approx(0.033792, abs=US)
    assert (one["copies"], one["kernels"]) == (19, 0)
    assert (four["kernels"], six["kernels"]) == (665, 665)
    for gpu, kernel, busy, h2d, d2h, span in (
        (four, 14.825385, 14.983622, 0.158973, 0.039456, 119.308658),
        (six, 14.865363, 15.050451, 0.201632, 0.037504, 490.469870),
    ):
        assert gpu["kernel_busy_ms"] == pytest.approx(kernel, abs=US)
        assert gpu["any_busy_ms"] == pytest.approx(busy, abs=US)
        assert gpu["copy_busy_ms"]["h2d"] == pytest.approx(h2d, abs=US)
        assert gpu["copy_busy_ms"]["d2h"] == pytest.approx(d2h, abs=US)
        assert gpu["copy_busy_ms"]["d2d"] == 0
        assert gpu["span_ms"] == pytest.approx(span, abs=US)
    assert len(result["steps"]) >= 1


def test_mi300_legacy_layout(trace_json):
    found = devices(trace_json(_LEGACY))
    assert sorted(found) == [0, 7]
    assert found[0]["copies"] == 53
    assert found[0]["any_busy_ms"] == pytest.approx(0.889028, abs=US)
    assert found[0]["span_ms"] == pytest.approx(27.867728, abs=US)
    assert found[7]["kernels"] == 25
    assert found[7]["kernel_busy_ms"] == pytest.approx(3.586493, abs=US)
    assert found[7]["span_ms"] == pytest.approx(15.761301, abs=US)


def test_mi300_raw_layout(trace_json):
    result = trace_json(_RAW)
    expected = {
        0: (3.995965, 138.470832),
        1: (3.345845, 112.106106),
        2: (3.524285, 106.992671),
        3: (3.403364, 95.261145),
        4: (3.493365, 91.596080),
        5: (3.464884, 92.938503),
        6: (3.403004, 104.221477),
        7: (3.502165, 90.563059),
    }
    found = devices(result)
    assert sorted(found) == sorted(expected)
    for index, (busy, span) in expected.items():
        assert found[index]["any_busy_ms"] == pytest.approx(busy, abs=US)
        assert found[index]["span_ms"] == pytest.approx(span, abs=US)
    assert result["start_ns"] == 1771595639214724894


def test_cpu_trace_is_input_bound(trace_json):
    result = trace_json(_CPU)
    assert result["devices"] == []
    assert [s["step"] for s in result["steps"]] == list(range(20, 30))
    share = sum(s["input_wait_ms"] for s in result["steps"]) / sum(s["duration_ms"] for s in result["steps"])
    assert share == pytest.approx(0.89, abs=0.02)
    assert "input_bound" in causes(result)
    finding = result["findings"][0]
    assert finding["evidence"]["slowest_stage"].endswith("::Map")
    assert result["host_ops"][0]["name"] == "EagerPyFunc"
    for step in result["steps"]:
        assert 0 < step["host_op_ms"] <= step["duration_ms"]


def test_synthetic_gpu_is_still_input_bound(trace_json):
    result = trace_json(_SYNTHETIC)
    gpu = devices(result)[0]
    assert gpu["kernels"] == 10
    assert gpu["kernel_busy_ms"] == pytest.approx(5.0, abs=US)
    assert gpu["span_ms"] == pytest.approx(197.309899, abs=US)
    assert causes(result)[0] == "input_bound"
    assert result["findings"][0]["severity"] > 0.8
    for step in result["steps"]:
        assert step["gpus"][0]["kernel_ms"] == pytest.approx(0.5, abs=US)
        assert step["input_wait_ms"] == step["gpus"][0]["idle_input_ms"]
        assert step["input_wait_ms"] > 0.75 * step["duration_ms"]


def test_trace_without_step_marker_has_its_steps(trace_json):
    result = trace_json(_NO_MARKER)
    assert [s["step"] for s in result["steps"]] == list(range(19, 30))
    assert result["processes"][0]["steps_from"] == "marker"
    assert all(s["duration_ms"] > 2 for s in result["steps"])


@pytest.mark.parametrize("name", [_BERT, _LEGACY, _RAW, _SYNTHETIC])
def test_little_is_unexplained(trace_json, name):
    result = trace_json(name)
    assert result["steps"]
    for index in devices(result):
        other = total = 0.0
        for step in result["steps"]:
            gpu = next(g for g in step["gpus"] if g["index"] == index)
            other += gpu["other_ms"]
            total += step["duration_ms"]
        assert other <= 0.05 * total


@pytest.mark.parametrize("name", [_BERT, _LEGACY, _RAW, _SYNTHETIC, _CPU])
def test_recording_rows_sum_to_the_nanosecond(reference, name):
    tables = recording_tables(analyse(read_trace(reference(f"xplane/{name}.xplane.pb"))))
    steps = tables["traced_steps"]
    total = sum(steps[f"{c}_ns"] for c in CATEGORIES)
    assert total.tolist() == steps["duration_ns"].tolist()
    assert min(int(steps[f"{c}_ns"].min()) for c in CATEGORIES) >= 0
    assert set(steps["window"].tolist()) == {0}
    lengths = {len(column) for column in tables["kernels"].values()}
    assert len(lengths) == 1


def test_rows_of_the_host_alone_hold_its_busiest_ops(reference):
    analysis = analyse(read_trace(reference(f"xplane/{_CPU}.xplane.pb")))
    kernels = recording_tables(analysis)["kernels"]
    ops = analysis.processes[0].host_ops
    assert kernels["name"].tolist() == [op.name for op in ops]
    assert kernels["op"].tolist() == [op.kind for op in ops]
    assert kernels["total_ns"].tolist() == [op.total_ps // 1000 for op in ops]
    assert set(kernels["gpu"].tolist()) == {-1}
    assert len(ops) > 0
    with_gpu = recording_tables(analyse(read_trace(reference(f"xplane/{_SYNTHETIC}.xplane.pb"))))
    assert set(with_gpu["kernels"]["gpu"].tolist()) == {0}


def test_kernels_of_the_reference_traces(trace_json):
    kernels = trace_json(_BERT)["kernels"]
    for gpu in (4, 6):
        mine = [k for k in kernels if k["gpu"] == gpu]
        assert sum(k["count"] for k in mine) == 665
        assert all(k["min_us"] <= k["mean_us"] <= k["max_us"] for k in mine)
        assert all(k["op"] for k in mine)
        assert all(k["registers"] and k["grid"] and k["block"] for k in mine)
    amd = trace_json(_RAW)["kernels"]
    matmul = next(k for k in amd if k["name"].startswith("Cijk_"))
    assert matmul["tensor_core"] == "yes"
    assert matmul["op"] == "jit(forward_3d_conv)/conv_general_dilated"
    assert matmul["grid"] == [219, 40, 1]
    assert matmul["occupancy_pct"] is None  # "occ_pct:0" is what ROCm writes for "not computed"
    assert matmul["count"] == 5


def test_allocator_profiles(trace_json):
    memory = {m["allocator"]: m for m in trace_json(_BERT)["memory"]}
    assert memory["GPU_4_bfc"]["gpu"] == 4
    assert memory["GPU_4_bfc"]["peak_bytes"] == 6208853760
    assert memory["gpu_host_bfc"]["gpu"] is None
    curve = memory["GPU_4_bfc"]["curve"]
    assert max(curve["allocated_bytes"]) == memory["GPU_4_bfc"]["max_allocated_bytes"]
    assert curve["time_ms"] == sorted(curve["time_ms"])
