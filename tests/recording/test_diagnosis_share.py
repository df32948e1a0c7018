"""How often a recorder diagnoses: a long training with many spans pays no larger share for it."""

from __future__ import annotations

import itertools
import time

import numpy as np
from scripted_runs import MS, step_rows

from gpu_util_callback.recorder.outputs import DIAGNOSIS_SHARE, Outputs, RunningDiagnosis
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording import RecordingWriter
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.segments import complete
from gpu_util_callback.recording.writer import MOST_UNSUMMED, MOST_UNSUMMED_PARTS

FLUSH_NS = 1_500_000_000
START = 1_700_000_000_000_000_000


class Slow:
    """A diagnosis of a tenth of a second."""

    def __init__(self):
        self.done = []

    def result(self, facts, now_ns, ended):
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        self.done.append(now_ns)
        return {}

    def new(self, result):
        return []


class Listed:
    """Sums that note what is added to them: the steps, and how many at a time."""

    def __init__(self):
        self.rows, self.sizes = [], []

    def add(self, tables, samples):
        self.rows += tables["steps"]["step"].tolist()
        self.sizes.append(len(tables["steps"]["step"]))


def judging(tmp_path):
    """Outputs with a recording, and with a diagnosis and sums of ours."""
    outputs = Outputs(Settings(log_dir=str(tmp_path), report=False), Clock(), fail)
    outputs._writer = RecordingWriter(tmp_path, {}, clock=Clock(), later=True)
    outputs._writer.sums = Listed()
    outputs._diagnosis = Slow()
    return outputs, outputs._diagnosis, outputs._writer.sums


def test_a_diagnosis_that_takes_long_is_made_less_often(tmp_path):
    outputs, slow, sums = judging(tmp_path)
    flushes = 60
    for number in range(flushes):
        outputs.append({"steps": {"step": [number]}}, [])
        outputs.diagnose({}, 0, number * FLUSH_NS, last=False)
    assert max(sums.sizes) == MOST_UNSUMMED_PARTS  # no more rows wait, whatever is due
    assert slow.done[:2] == [0, FLUSH_NS]  # the first one may only have imported
    apart = [b - a for a, b in zip(slow.done[1:], slow.done[2:], strict=False)]
    assert len(apart) > 1 and min(apart) >= 0.1e9 / DIAGNOSIS_SHARE
    outputs.append({"steps": {"step": [flushes]}}, [])
    outputs.diagnose({}, 0, flushes * FLUSH_NS, last=True)
    assert slow.done[-1] == flushes * FLUSH_NS  # the last one is made in any case
    assert sums.rows == list(range(flushes + 1))


def test_many_steps_do_not_wait_for_the_next_diagnosis(tmp_path):
    """155,000 empty steps a second: eight flushes of 1.5 s would take half a gigabyte."""
    outputs, slow, sums = judging(tmp_path)
    for number in range(9):
        rows = range(number * MOST_UNSUMMED, (number + 1) * MOST_UNSUMMED)
        outputs.append({"steps": {"step": rows}}, [])
        outputs.diagnose({}, 0, number * FLUSH_NS // 100, last=False)
    assert sums.sizes == [MOST_UNSUMMED] * 9 and len(slow.done) < 9


def test_a_long_training_is_diagnosed_less_often(tmp_path, monkeypatch):
    outputs, quick, _ = judging(tmp_path)
    monkeypatch.setattr(time, "thread_time", itertools.count(0, 0.2).__next__)
    monkeypatch.setattr(time, "thread_time_ns", lambda: 0)
    for number in range(400):
        outputs.append({"steps": {"step": [number]}}, [])
        outputs.diagnose({}, 0, number * FLUSH_NS, last=False)
    apart = [b - a for a, b in zip(quick.done[1:], quick.done[2:], strict=False)]
    assert apart[0] == 4 * FLUSH_NS and apart == sorted(apart)
    assert 10e9 <= apart[-1] < 10e9 + FLUSH_NS


def test_rows_of_several_flushes_are_diagnosed_as_one(tmp_path):
    whole = made_up_steps(300)
    found = []
    for parts in (1, 3):
        writer = RecordingWriter(tmp_path, {}, clock=Clock(), later=True)
        running = RunningDiagnosis(START, None)
        writer.sums = running.evidence
        for rows in np.array_split(np.arange(300), parts):
            writer.append("steps", {name: values[rows] for name, values in whole.items()})
            times = whole["start_ns"][rows][::10]
            writer.append_samples("gpu0", ("utilization_pct",), times, np.full((len(times), 1), 50.0))
        with writer.summed():
            found.append(running.result({}, int(whole["start_ns"][-1]) + MS, ended=True))
    assert found[0] == found[1]
    assert found[0]["verdict"]


def made_up_steps(count):
    rows = complete("steps", step_rows(count))
    rows["input_wait_ns"] = rows["duration_ns"] // 2
    return rows


def fail(*problem):
    raise AssertionError(problem)
