"""GpuUtilMonitor around plain TensorFlow, JAX and torch loops."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from injected import DELAYS_MS, PER_DELAY, SLACK_MS
from packages import need
from processes import shared, summed_up

from gpu_util_callback.backends.input_calls import TIMED

DELAYS = [delay for delay in DELAYS_MS for _ in range(PER_DELAY)]
FRAMEWORKS = ("tensorflow", "jax", "torch")


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    need(request.param)
    return request.param


@pytest.fixture
def measured(framework):
    """Held against what the program itself has stamped."""
    return shared("loop_program.py", framework, "waits", "parts", "elsewhere")


@pytest.fixture
def counted(framework):
    return counted_of(framework)


def counted_of(framework: str) -> dict:
    groups = ["failing"]
    groups += ["stages"] if importlib.util.find_spec("tensorflow") else []
    groups += {"torch": ["compiled"], "tensorflow": ["xla"]}.get(framework, [])
    return shared("loop_program.py", framework, *groups)


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_wait_is_the_truth(framework, measured):
    waits = {name: one for name, one in measured.items() if name.startswith("waits/")}
    assert len(waits) == (2 if framework == "jax" else 4)
    for name, one in waits.items():
        assert one["good"], f"{name}: measured {one['measured']}, truth {one['truth']} ms"
        assert one["steps"] == 24 and one["status"] == "ended"
        assert one["framework"]["name"] == framework
        assert one["overhead"]["callback_us_per_step"] > 0
        assert one["body_off"] == pytest.approx(0, abs=1)
        summed_up(one)
        kind = name.split("/")[1]
        assert one["fit"]["input_first"] == [
            {
                "dtype": "float32",
                "type": {"tf.data": "tensorflow", "DataLoader": "torch"}.get(kind, "numpy"),
                "rank": 2,
                "rows": 8,
                "bytes": 512,
                "integers": False,
                "min": pytest.approx(0.1),
                "max": pytest.approx(0.1),
                "sum": pytest.approx(12.8),
            }
        ]
        [entry] = one["fit"]["input_calls"]
        assert (
            entry["name"]
            == {"generator": "generator expression", "tf.data": "lambda", "DataLoader": "Batches.__getitem__"}[kind]
        )
        assert entry["calls"] == pytest.approx(24, abs=4)
        assert entry["timed"] == 16 + sum(16 < number <= entry["calls"] for number in TIMED)
        assert entry["wall_ms"] > 0.9 * np.mean(DELAYS[:16])
        assert entry["cpu_ms"] < 0.5, "it sleeps"


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_the_first_step_is_a_compilation(framework, measured):
    compiled = measured["waits/generator/0"]["compiled"]
    assert compiled == ([] if framework == "torch" else [0])
    assert measured["waits/generator/15"]["compiled"] == []


@pytest.mark.real_clock("the pipelines are read at intervals")
def test_stages_of_tf_data_are_read(framework, counted):
    need("tensorflow")
    one = counted["stages"]
    assert "map(decode)" in one["found"]
    assert one["fit"]["input_kind"] == "tf.data"
    assert one["framework"]["name"] == framework, "tf.data alone is no training"


def test_what_xla_compiles_in_a_tensorflow_loop():
    need("tensorflow")
    one = counted_of("tensorflow")["xla"]
    assert one["compiled"] == [0, 12]
    summed_up(one)


def test_torch_compile():
    need("torch")
    one = counted_of("torch")["compiled"]
    assert one["compiled"] == [0, 9]
    summed_up(one)


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_epochs_validations_and_other_phases(measured):
    one = measured["parts"]
    summed_up(one)
    assert one["steps"] == 20 + 20 + 15
    assert one["kinds"]["epoch"] == one["kinds"]["validation"] == one["kinds"]["checkpoint"] == 3
    assert one["logged"] == 55
    assert one["length"] == 3
    spent = one["account"]["time_s"]
    assert len(one["validation_off_ms"]) == 15
    assert np.median(one["validation_off_ms"]) == pytest.approx(0, abs=SLACK_MS)
    for kind in ("validation", "callbacks"):
        assert spent[kind] == pytest.approx(one["spent"][kind], rel=0.05, abs=0.02)
    assert one["spent"]["step"] <= spent["step"] <= one["spent"]["step"] + 0.5
    assert spent["other"] == pytest.approx(one["spent"]["before"], rel=0.05, abs=0.02)


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_loops_that_fetch_elsewhere(measured):
    one = measured["elsewhere"]
    summed_up(one)
    assert one["steps"] == 30
    assert one["fetched_off_ms"] == pytest.approx(0, abs=SLACK_MS)
    assert one["told_ms"] == pytest.approx(2, abs=0.1)
    assert one["unknown"] == 10, "a wait that nobody has seen is absent"
    assert one["body_off_ms"] == pytest.approx(0, abs=SLACK_MS)


def test_an_exception_passes_through_and_ends_the_recording(counted):
    assert counted["raised"]["status"] == "interrupted"
    assert counted["raised"]["steps"] == 5


def test_a_fault_of_ours_does_not_reach_the_loop(counted):
    assert counted["ours"]["seen"] == list(range(10))
    assert counted["ours"]["status"] == "interrupted"
    assert counted["nowhere"]["seen"] == [0, 1, 2]


def test_arguments_are_checked_at_once():
    from gpu_util_callback import GpuUtilMonitor

    with pytest.raises(ValueError, match="framework must be one of"):
        GpuUtilMonitor(framework="mxnet")
    with pytest.raises(ValueError, match="sample_hz"):
        GpuUtilMonitor(sample_hz=0)
