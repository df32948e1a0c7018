"""Accelerator utilization: MLPerf Storage's formula, over its tool's own times and live."""

import time

import numpy as np
import pytest
from made_up_rows import phase_table

from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.diagnosis import Evidence, Run, judge, logdir_report
from gpu_util_callback.diagnosis.evidence.usage import AcceleratorUse
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.segments import complete

START_NS = 1_700_000_000 * 10**9


def milliseconds(text: str) -> list[int]:
    return list(map(int, text.split()))


# Rank 0 of the two epochs of DLIO's test data, in milliseconds: the time from asking for a batch to
# the end of its processing, and the emulated computing of each step. AU as its tool put it out.
COMPUTE_MS = 1360.4
EPOCHS = {
    97.40: milliseconds(
        "4356 1912 1363 1364 1372 1369 1364 1363 1370 1368 1364 1367 1368 1371 1364 1369 1367 1391 1371 1364 1368"
    ),
    86.00: milliseconds(
        "5832 1415 1364 1370 4897 1372 1365 1367 1373 1372 1366 1366 1373 1369 1369 1378 1372 1388 1376 1382 1368"
    ),
}
# What the second epoch's block lasted beyond its steps: its loader ended.
CLOSING_MS = {97.40: 0, 86.00: 422}


def formula(process_ms, compute_ms, block_ms):
    """The benchmark's: computing over the block's time, both without the first step."""
    return 100 * sum(compute_ms[1:]) / (block_ms - process_ms[0])


def tables():
    """A recording's tables of both epochs, each a second after the other."""
    now, steps, phases = START_NS, [], []
    for au, process in EPOCHS.items():
        begun = now
        for ms in process:
            length = round(ms * 1e6)
            body = round(COMPUTE_MS * 1e6)
            steps.append((len(steps), now, length, length - body, body))
            now += length
        closing = round(CLOSING_MS[au] * 1e6)
        phases.append(("gap", "end of input", now, now + closing, len(steps), "input_wait"))
        now += closing
        phases.append(("epoch", "epoch", begun, now, len(steps)))
        now += 10**9
    columns = zip(*steps, strict=True)
    names = ("step", "start_ns", "duration_ns", "input_wait_ns", "body_ns")
    return {"steps": dict(zip(names, map(np.array, columns), strict=True)), "phases": phase_table(*phases)}


def use_in(*parts):
    evidence = Evidence()
    for part in parts:
        evidence.add(part)
    return judge(Run({"started_ns": START_NS}, evidence))["au"]


def test_dlio_s_own_times_give_its_own_figures():
    found = use_in(tables())
    assert [one["steps"] for one in found["epochs"]] == [20, 20]
    for one, (published, process) in zip(found["epochs"], EPOCHS.items(), strict=True):
        own = formula(process, [COMPUTE_MS] * 21, sum(process) + CLOSING_MS[published])
        assert one["au_pct"] == pytest.approx(own, abs=0.01)
        # Its data are of a version that left out the last step as well.
        assert one["au_pct"] == pytest.approx(published, abs=0.6)
    mean = sum(one["au_pct"] for one in found["epochs"]) / 2
    assert found["pct"] == pytest.approx(mean, abs=0.01)


def test_unknown_waits_and_single_steps_have_no_utilization():
    rows = tables()["steps"]
    assert use_in({"steps": {**rows, "input_wait_ns": np.full(42, -1)}}) is None
    assert use_in({"steps": {name: column[:1] for name, column in rows.items()}}) is None


def test_a_long_run_keeps_its_mean_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(AcceleratorUse, "CAPACITY", 8)
    use = AcceleratorUse()
    at = START_NS + np.arange(1000) * 100  # each row a stretch of its own: 10 of 100 ns between
    rows = {
        "start_ns": at,
        "duration_ns": np.full(1000, 90),
        "body_ns": np.full(1000, 45),
        "input_wait_ns": np.full(1000, 45),
    }
    use.add(complete("steps", rows))
    from gpu_util_callback.diagnosis.evidence.blocks import Phases

    assert use.result(Phases())["pct"] == pytest.approx(45, abs=0.1)


# Real sleeps, held to half a percent: whoever takes the core for 20 ms moves it by that.
@pytest.mark.timed
def test_dlio_s_workload_under_the_monitor(tmp_path):
    """The benchmark's loop: a batch is loaded, then a sleep stands for the accelerator."""
    rng = np.random.default_rng(0)
    process, compute = [], []

    def load():
        for wait in rng.uniform(0.005, 0.03, 40):
            time.sleep(wait)
            yield wait

    with GpuUtilMonitor(str(tmp_path), report=False, trace="off") as monitor:
        block = asked = time.perf_counter()
        for _ in monitor.batches(load()):
            began = time.perf_counter()
            time.sleep(0.05)
            done = time.perf_counter()
            compute.append(done - began)
            process.append(done - asked)
            asked = time.perf_counter()
        block = time.perf_counter() - block
    (run,) = logdir_report(read_recordings(str(tmp_path)))["runs"]
    own = formula(process, compute, block)
    assert 60 < own < 85
    assert run["au_pct"] == pytest.approx(own, abs=0.5)
    assert [one["steps"] for one in run["au_epochs"]] == [39]
