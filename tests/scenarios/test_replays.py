"""Real traces, replayed as a run's tables: the verdicts that their origin implies."""

import pytest

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.read import read_trace
from gpu_util_callback.traces.recorded import recording_tables


def causes(path, backend: str, capability: str | None = None) -> dict[str, dict]:
    """What the rules say of a trace's steps, as if they were all of a run."""
    tables = recording_tables(analyse(read_trace(path)))
    traced = tables["traced_steps"]
    gpus = sorted({int(gpu) for gpu in traced["gpu"] if gpu >= 0})
    one = traced["gpu"] == (gpus[0] if gpus else -1)
    duration, wait = traced["duration_ns"][one], traced["idle_input_ns"][one]
    steps = {
        "step": traced["step"][one],
        "start_ns": traced["start_ns"][one],
        "duration_ns": duration,
        "input_wait_ns": wait,
        "body_ns": duration - wait,
    }
    facts = {
        "framework": {"backend": backend},
        "gpus": [{"index": gpu, "used_by_framework": True, "compute_capability": capability} for gpu in gpus],
    }
    evidence = Evidence()
    evidence.add(tables | {"steps": steps})
    found = judge(Run(facts, evidence, ended=True))
    return {finding["cause"]: finding for finding in [*found["spans"], *found["findings"]]}


@pytest.mark.parametrize(
    "name", ["cpu_tf221_inputbound_10steps.xplane.pb", "cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb"]
)
def test_input_bound_traces_are_input_bound(trace_data, name):
    found = causes(trace_data / "xplane" / name, "tensorflow")
    assert set(found) == {"input_bound"}
    assert found["input_bound"]["severity"] == pytest.approx(0.88, abs=0.03)


def test_resnet_on_a_v100_uses_no_tensor_cores(trace_data):
    path = trace_data / "kineto" / "v100_resnet50_num_workers_0.json.gz"
    found = causes(path, "torch", "7.0")
    assert set(found) == {"no_tensor_cores"}, "six steps are too few for an input_bound span"
    assert "float16" in found["no_tensor_cores"]["advice"]["code"]


@pytest.mark.parametrize(
    "name",
    [
        "nsys/healthy_1pct.sqlite",
        "nsys/mfu_2gpu_before.sqlite",
        "xplane/cpu_tf221_no_step_marker.xplane.pb",
        "kineto/h100_timesformer.json.gz",
    ],
)
def test_nothing_is_claimed_where_nothing_is_known(trace_data, name):
    assert causes(trace_data / name, "torch", "9.0") == {}
