"""What GpuUtilCallback accepts, and how it says no; scalars' points; the job's name."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from gpu_util_callback import GpuUtilCallback
from gpu_util_callback.job import job_facts
from gpu_util_callback.recorder.outputs import ScalarPoints


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"log_dir": 3}, TypeError, "log_dir must be a path"),
        ({"log_dir": ""}, ValueError, "log_dir must name a directory"),
        ({"sample_hz": 0}, ValueError, "sample_hz must be above 0"),
        ({"sample_hz": 1e6}, ValueError, "at most 100"),
        ({"sample_hz": "fast"}, TypeError, "sample_hz must be a number"),
        ({"sample_hz": float("nan")}, ValueError, "sample_hz"),
        ({"scalar_freq": 0}, ValueError, "at least 1 step"),
        ({"scalar_freq": "often"}, TypeError, 'scalar_freq must be "auto"'),
        ({"scalar_freq": True}, TypeError, "scalar_freq"),
        ({"overhead_budget": 2}, ValueError, "overhead_budget must be at least 0 and at most 1"),
        ({"thresholds": [1]}, TypeError, "thresholds must be a dictionary"),
        ({"thresholds": {"no_such_cause": {"x": 1}}}, ValueError, "no_such_cause"),
        ({"job": 7}, TypeError, "job must be a name"),
        ({"redact": "yes"}, TypeError, "redact must be True or False"),
        ({"report": 1}, TypeError, "report must be True or False"),
        ({"trace": "sometimes"}, (TypeError, ValueError), "trace"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words) as raised:
        GpuUtilCallback(**arguments)
    assert "\n" not in str(raised.value)


def test_good_arguments():
    GpuUtilCallback(Path("logs"), sample_hz=0.5, scalar_freq=10, thresholds={"input_bound": {}})
    GpuUtilCallback(thresholds={"input_bound": {"wait_pct": 20}}, job="a", redact=True)


def test_nothing_is_made_before_a_fit(tmp_path):
    GpuUtilCallback(str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


# ---- scalars -------------------------------------------------------------------------------


def steps(first: int, durations_ms, waits_ms=None) -> dict[str, np.ndarray]:
    durations = (np.array(durations_ms) * 1e6).astype(np.int64)
    waits = np.full(len(durations), -1) if waits_ms is None else np.array(waits_ms) * 1e6
    return {
        "step": np.arange(first, first + len(durations)),
        "start_ns": np.concatenate([[0], np.cumsum(durations)[:-1]]) + first * 10**9,
        "duration_ns": durations,
        "input_wait_ns": waits.astype(np.int64),
    }


def test_every_step_has_its_point():
    points = ScalarPoints(1).add_steps(steps(0, [10, 20, 30], [1, 2, 3]))
    assert [step for step, _, _ in points] == [0, 1, 2]
    assert [values["gpu_util/step_time_ms"] for _, values, _ in points] == [10, 20, 30]
    assert [values["gpu_util/input_wait_ms"] for _, values, _ in points] == [1, 2, 3]


def test_a_point_is_the_mean_since_the_last_one():
    points = ScalarPoints(4)
    found = points.add_steps(steps(0, [10] * 3)) + points.add_steps(steps(3, [10, 50, 1]))
    assert [(s, v["gpu_util/step_time_ms"]) for s, v, _ in found] == [(0, 10), (4, 20)]
    assert "gpu_util/input_wait_ms" not in found[0][1]  # absent is not 0
    ((step, values, _),) = points.last_point(5, 10**9)
    assert (step, values["gpu_util/step_time_ms"]) == (5, 1)


def test_auto_thins_a_long_run():
    points = ScalarPoints("auto")
    at = [s for first in range(0, 200_000, 1000) for s, _, _ in points.add_steps(steps(first, np.ones(1000)))]
    assert at[:200] == list(range(200))
    assert 1000 < len(at) < 3000
    assert all(b > a for a, b in itertools.pairwise(at))


def test_utilization_is_weighted_by_time():
    points = ScalarPoints(1)
    time_ns = (np.array([0.0, 0.1, 0.4]) * 1e9).astype(np.int64)
    values = np.array([[100.0, 1 << 20], [0.0, 3 << 20], [50.0, np.nan]])
    points.add_samples("gpu0", ("utilization_pct", "memory_used_bytes"), time_ns, values)
    points.add_samples("host", ("cpu_pct",), time_ns, values[:, :1])
    ((_, found, _),) = points.add_steps(steps(0, [400]))
    assert found["gpu_util/gpu0/utilization_pct"] == pytest.approx(25)  # 0.1 of 0.4 s at 100
    assert found["gpu_util/gpu0/memory_used_mib"] == pytest.approx(2.5)
    assert found["gpu_util/gpu0/kernel_time_est_ms"] == pytest.approx(100)
    assert not any("host" in tag for tag in found)


def test_old_samples_say_nothing():
    points = ScalarPoints(1)
    points.add_samples("gpu0", ("utilization_pct",), np.array([0]), np.array([[70.0]]))
    ((_, found, _),) = points.add_steps(steps(5, [10]))  # five seconds later
    assert list(found) == ["gpu_util/step_time_ms"]


# ---- the job's name -------------------------------------------------------------------------


def test_workers_of_one_job_agree():
    cluster = {"worker": ["a:1", "b:1"], "chief": ["c:1"]}

    def worker(kind, index):
        task = {"cluster": cluster, "task": {"type": kind, "index": index}}
        return job_facts(environ={"TF_CONFIG": json.dumps(task)})

    found = [worker("chief", 0), worker("worker", 0), worker("worker", 1)]
    assert len({f["job"] for f in found}) == 1 and found[0]["job"]
    assert [f["rank"] for f in found] == [0, 1, 2]
    assert {f["world_size"] for f in found} == {3}


def test_a_name_given_wins():
    named = job_facts("night run", environ={})
    assert named["job_source"] == "argument" and named["job"]
    assert named["job"] == job_facts("night run", environ={})["job"]
    assert named["job"] != job_facts("day run", environ={})["job"]


def test_a_broken_tf_config_is_no_job():
    assert job_facts(environ={"TF_CONFIG": "{"})["world_size"] == 1
