"""What was recorded on real GPUs still gets the verdicts that are true for it."""

import time
from pathlib import Path

import numpy as np
import pytest
from evidence.scenarios import named
from evidence.verdicts import judge
from nvml import loaded
from nvml_recorder import Recording
from recorded_runs import recorded_runs

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import Evidence, Run
from gpu_util_callback.diagnosis import judge as diagnosed
from gpu_util_callback.gpus import Sampler, _gate
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

RECORDED = Path(__file__).resolve().parents[2] / "demo" / "recorded"
RUNS = [pytest.param(*one, id="/".join(one[0].parts[-2:])) for one in recorded_runs(RECORDED)]
WITHOUT = pytest.mark.skip("no recordings of a GPU in demo/recorded yet")
NONE = [pytest.param(None, None, marks=WITHOUT, id="none")]


DRIVERS = [pytest.param(file, id=f"{file.parent.name}/{file.stem}") for file in sorted(RECORDED.glob("*/*.nvml"))]


def test_nothing_of_the_stand_in_is_kept_as_recorded():
    assert [run for run, truth in recorded_runs(RECORDED) if truth["stand_in"]] == []
    assert sum(f.stat().st_size for f in RECORDED.rglob("*") if f.is_file()) < 8 << 20


def causes_now(recording):
    """What today's rules find, whatever was stored."""
    evidence = Evidence(recording.start_ns)
    tables = {
        name: getattr(recording, name)
        for name in ("steps", "phases", "validation_steps", "pipeline", "traced_steps", "kernels")
    }
    evidence.add(tables, recording.samples)
    found = diagnosed(Run(recording.facts, evidence, recording.end_ns, ended=True))
    return {thing["cause"] for thing in (*found["findings"], *found["spans"])}


@pytest.mark.parametrize(("run", "truth"), RUNS or NONE)
def test_todays_rules_find_what_is_true(run, truth):
    recordings = list(read_recordings(run))
    causes = set()
    for recording in recordings:
        assert recording.problems == [] and recording.status == "ended"
        causes |= causes_now(recording)
    found = {"causes": sorted(causes), "windows": truth["windows"], "unavailable": truth["unavailable"]}
    verdict = judge(named(truth["scenario"]), found)
    assert verdict.right, verdict.note


@pytest.mark.parametrize(("run", "truth"), RUNS or NONE)
def test_its_windows_can_be_read_again(run, truth):
    for file in run.rglob("*.xplane.pb"):
        trace = read_trace(str(file))
        analysis = analyse(trace)
        [process] = analysis.processes
        assert process.steps.basis == "marker" and len(process.steps)
        assert [len(device.device.events) > 0 for device in process.devices] == [True]


@pytest.mark.parametrize("file", DRIVERS or [pytest.param(None, marks=WITHOUT, id="none")])
def test_what_the_driver_answered_can_be_replayed(file, tmp_path, monkeypatch):
    monkeypatch.setattr(_gate, "_started_in", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with loaded(Recording(file), tmp_path):
        sampler = Sampler(Clock())
        sampler.start()
        rows = {}
        end = time.perf_counter() + 10
        while len(rows.get("gpu0", ())) < 5 and time.perf_counter() < end:
            time.sleep(0.2)
            for block in sampler.drain():
                rows.setdefault(block.group, []).extend(block.values[:, 0])
        sampler.stop()
    assert np.isfinite(rows["gpu0"]).sum() >= 3, sampler.unavailable
