"""`gpu-util total --engine ray`: the same rows from the workers of a real local cluster."""

import json
import os
from pathlib import Path

import pytest
from generated_runs import GPU, Generated, write
from make_recording import make_recording
from packages import need

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.diagnosis.total_time import total


@pytest.fixture
def cluster(monkeypatch):
    need("ray")
    import ray

    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", paths)  # the workers import what is tested
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def test_a_cluster_diagnoses_what_has_no_summary(cluster, tmp_path, capsys):
    for place, scenario in enumerate(("thirds", "healthy", "slow")):
        make_recording(tmp_path / scenario, scenario, 300, 3, seed=place, scalars=False)
    run = Generated(seed=1, gpus=[GPU], script="train.py")
    run.steps(1000, step_ms=10, wait_ms=10)
    write(run, tmp_path / "old")  # no diagnosis in its manifest
    [damaged] = (tmp_path / "healthy").rglob("manifest.json")
    damaged.write_text("{")
    here = total(survey([str(tmp_path)]))
    there = total(survey([str(tmp_path)], engine="ray"))
    assert here["read"]["diagnosed"] == 2 and here["read"]["problems"]
    assert there == here
    strict = {"input_bound.wait_pct": 99}
    assert total(survey([str(tmp_path)], thresholds=strict, engine="ray")) == total(
        survey([str(tmp_path)], thresholds=strict)
    )
    arguments = ["total", str(tmp_path), "--engine", "ray", "--json", "--no-cache"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["gpu_hours"] == here["gpu_hours"]
    assert main([*arguments, "--threshold", "input_bound.no_such=1"]) == 2
    assert "no_such" in capsys.readouterr().err
