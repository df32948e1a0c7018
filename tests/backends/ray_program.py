"""Trials of Ray Tune on a local cluster, each training under GpuUtilMonitor."""

from __future__ import annotations

import sys
import time

import ray
from injected import report
from ray import tune

from gpu_util_callback import GpuUtilMonitor, read_recordings


def trial(config: dict) -> None:
    with GpuUtilMonitor(config["log_dir"], report=False) as monitor:
        for _ in monitor.batches(range(30)):
            time.sleep(0.001 * config["batch_size"])
    tune.report({"name": tune.get_context().get_trial_name()})


if __name__ == "__main__":
    log_dir = sys.argv[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    space = {"batch_size": tune.grid_search([2, 8]), "log_dir": log_dir}
    results = tune.Tuner(trial, param_space=space).fit()
    ray.shutdown()
    recordings = read_recordings(log_dir)
    report(
        "trials",
        names=sorted(result.metrics["name"] for result in results),
        recorded=sorted(recording.facts.get("trial", "") for recording in recordings),
        sessions=len({recording.session for recording in recordings}),
        steps=[len(recording.steps["step"]) for recording in recordings],
        status=[recording.status for recording in recordings],
    )
