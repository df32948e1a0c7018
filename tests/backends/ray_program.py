"""Trials of Ray Tune on a local cluster, each training under GpuUtilMonitor."""

from __future__ import annotations

import contextlib
import io
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
    said = io.StringIO()
    if config["batch_size"] == 8:  # what a relative log_dir means in here
        with contextlib.redirect_stderr(said), GpuUtilMonitor("logs") as monitor:
            for _ in monitor.batches(range(3)):
                time.sleep(0.01)
    tune.report({"name": tune.get_context().get_trial_name(), "said": said.getvalue()})


if __name__ == "__main__":
    from gpu_util_callback.diagnosis import logdir_report
    from gpu_util_callback.report.terminal import render

    log_dir, address = sys.argv[1:]
    ray.init(address, log_to_driver=False)
    space = {"batch_size": tune.grid_search([2, 8]), "log_dir": log_dir}
    results = tune.Tuner(trial, param_space=space).fit()
    ray.shutdown()
    recordings = sorted(read_recordings(log_dir), key=lambda one: one.facts.get("trial", ""))
    report(
        "trials",
        names=sorted(result.metrics["name"] for result in results),
        said=[line for result in results for line in result.metrics["said"].splitlines()],
        recorded=[recording.facts.get("trial", "") for recording in recordings],
        configs=[recording.facts.get("trial_config", "") for recording in recordings],
        trial_of=[recording.facts.get("trial_of") for recording in recordings],
        texts=[render(logdir_report([recording]), 110) for recording in recordings],
        runs=[recording.run for recording in recordings],
        sessions=len({recording.session for recording in recordings}),
        steps=[len(recording.steps["step"]) for recording in recordings],
        status=[recording.status for recording in recordings],
    )
