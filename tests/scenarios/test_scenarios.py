"""Every cause is found where it is, and nowhere else: precision, recall and IoU over labelled runs.

`pytest -s tests/scenarios` prints the table.
"""

from functools import cache
from statistics import median

import pytest
from healthy_cases import healthy
from scenario_cases import all_along, in_place, pairs
from scoring import by_cause, score
from threshold_cases import near_threshold

from gpu_util_callback.diagnosis import RULES

CASES = [*in_place(), *all_along(), *pairs(), *near_threshold(), *healthy()]
PRECISION, RECALL, IOU = 1.0, 0.95, 0.9


@cache
def outcome(number: int) -> tuple[dict, dict, dict]:
    """(truth, cause -> findings, result) of a case."""
    run, truth = CASES[number].build()
    result = run.diagnose()
    return truth, by_cause(result), {"steps": run.step, **result}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_case(number):
    truth, findings, _ = outcome(number)
    assert set(findings) == set(truth)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_no_second_is_lost_twice(number):
    """Findings on the same time never lose more than that time, nor more than the run."""
    _, _, result = outcome(number)
    spans = result["spans"]
    for span in spans:
        inside = [one for one in spans if span["start_ns"] <= one["start_ns"] and one["end_ns"] <= span["end_ns"]]
        lost = sum(one["lost_s"] or 0 for one in inside)
        assert lost <= (span["end_ns"] - span["start_ns"]) / 1e9 * 1.000001
    for finding in [*spans, *result["findings"]]:
        assert finding["lost_s"] is None or finding["lost_s"] > 0, "unknown is null, never 0"
        assert finding["severity"] is None or 0 < finding["severity"] <= 1
        assert set(finding["threshold"]) <= set(finding["evidence"])


def test_there_are_enough_cases():
    healthy = [case for case in CASES if case.kind == "healthy"]
    assert len(CASES) >= 60 and len(healthy) >= 20
    assert len({case.name for case in CASES}) == len(CASES)
    labelled = {cause for number in range(len(CASES)) for cause in outcome(number)[0]}
    # Of traces alone: tests/traces/test_host_callbacks.py. Of several fits:
    # tests/diagnosis/test_fits_in_series.py.
    assert labelled == {rule.cause for rule in RULES} - {"host_callback", "between_fits"}


def test_scores():
    outcomes = ((truth, findings, result["steps"]) for truth, findings, result in map(outcome, range(len(CASES))))
    every = score(outcomes, "scenarios")
    assert every.precision >= PRECISION
    assert every.recall >= RECALL
    assert median(every.overlaps) >= IOU
    assert min(every.overlaps) >= 0.7
