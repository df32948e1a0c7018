"""What is folded does not depend on how its rows were cut into increments; nor is anything asked twice."""

import numpy as np
import pytest
from generated_runs import GPU, START_NS, Generated

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences, Phases, StepBlocks
from gpu_util_callback.diagnosis.evidence.gauges import SampleBins


def test_phases_fold_the_same_way_however_rows_arrive(monkeypatch):
    """Each validation has a tail, which belongs to it, also where several are joined."""
    monkeypatch.setattr(Occurrences, "CAPACITY", 8)
    run = Generated(seed=8)
    for number in range(50):
        run.steps(3, step_ms=8)
        run.phase("validation", 0.5)
        run.phase("gap", 0.1 * (number % 3), account="validation")
        run.phase("callback", 0.2, name=f"Callback{number % 2}.on_epoch_end")
    table = run.tables()["phases"]
    whole, parts = Phases(), Phases()
    whole.add(table)
    rows = len(table["kind"])
    for piece in np.split(np.arange(rows), np.sort(np.random.default_rng(0).integers(0, rows, 20))):
        parts.add({name: column[piece] for name, column in table.items()})
    [validations] = whole.of("validation").values()
    assert len(validations) <= 8 and validations.joined
    assert validations.count == 50 and validations.longest_ns == 7 * 10**8
    assert validations.self_ns == 50 * 5 * 10**8 + 49 * 10**8  # 17, 17 and 16 tails
    for kind in ("validation", "callback"):
        for name, occurrences in whole.of(kind).items():
            for column in Occurrences.COLUMNS:
                assert occurrences[column].tolist() == parts.of(kind)[name][column].tolist()


def test_a_mean_is_taken_over_time_not_over_samples():
    """Six samples a second while the GPU works, two while it idles: still half and half."""
    busy, idle = np.arange(0, 10, 1 / 6), np.arange(10, 20, 0.5)
    times = START_NS + (np.concatenate([busy, idle]) * 1e9).astype(np.int64)
    bins = SampleBins()
    bins.add({"time_ns": times, "utilization_pct": np.repeat([100, 0], [len(busy), len(idle)])})
    seen = bins.over("utilization_pct", START_NS, START_NS + 20 * 10**9)
    assert seen is not None and seen[0] == pytest.approx(50, abs=2)


def test_a_long_run_takes_no_more_memory_than_a_short_one():
    """After a million steps there are as many blocks as ever, and still the span is found."""
    run = Generated(seed=5)
    run.steps(400_000, step_ms=5)
    first, end = run.steps(100_000, step_ms=5, wait_ms=20)
    run.steps(500_000, step_ms=5)
    evidence = Evidence(run.facts["started_ns"])
    evidence.add(run.tables())
    assert len(evidence.steps) <= StepBlocks.CAPACITY
    [span] = judge(Run(run.facts, evidence, run.now))["spans"]
    assert abs(span["start_step"] - first) <= 5 and abs(span["end_step"] - end) <= 5


def test_what_several_rules_ask_is_summed_once(monkeypatch):
    """Eight GPUs, and rules that want the same means of the same ranges: none is taken twice."""
    run = Generated(seed=6, gpus=[GPU | {"index": index} for index in range(8)])
    for wait_ms in (0, 20, 0, 20):
        run.steps(500, step_ms=10, wait_ms=wait_ms)
    evidence = Evidence(run.facts["started_ns"])
    evidence.add(run.tables(), run.samples())
    asked = []
    over = SampleBins.over
    monkeypatch.setattr(SampleBins, "over", lambda bins, *what: asked.append((id(bins), *what)) or over(bins, *what))
    assert len(judge(Run(run.facts, evidence, run.now))["spans"]) == 2
    assert len(asked) >= 8 * 3  # the run and each span
    assert len(asked) == len(set(asked))


def test_nothing_is_kept_of_rows_that_grew():
    """What the evidence answered before the newest samples came is asked again."""
    run = Generated(seed=7, gpus=[GPU])
    run.steps(500, step_ms=10)
    run.steps(500, step_ms=10, wait_ms=30)
    evidence = Evidence(run.facts["started_ns"])
    evidence.add(run.tables(), run.samples())
    assert judge(Run(run.facts, evidence, run.now))["spans"]
    rows, samples = run.step, len(run.samples()["gpu0"]["time_ns"])
    run.steps(900, step_ms=20)  # what a step takes elsewhere is another now
    run.steps(500, step_ms=10, wait_ms=30)
    evidence.add(
        {"steps": {name: column[rows:] for name, column in run.tables()["steps"].items()}},
        {"gpu0": {name: column[samples:] for name, column in run.samples()["gpu0"].items()}},
    )
    assert judge(Run(run.facts, evidence, run.now)) == run.diagnose(ended=False)
