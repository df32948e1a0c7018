"""Every cause is found where it is, and nowhere else, over labelled runs."""

from functools import cache
from statistics import median

import pytest
from healthy_cases import healthy
from scenario_cases import all_along, in_place, pairs
from scoring import by_cause, check, overlaps

from gpu_util_callback.diagnosis import RULES

CASES = [*in_place(), *all_along(), *pairs(), *healthy()]
EACH = pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])


@cache
def outcome(number: int) -> tuple[dict, dict, int]:
    """(truth, cause -> findings, steps) of a case."""
    run, truth = CASES[number].build()
    return truth, by_cause(run.diagnose()), run.step


@EACH
def test_case(number):
    check(*outcome(number))


@EACH
def test_no_second_is_lost_twice(number):
    """Findings on the same time never lose more than that time, nor more than the run."""
    _, findings, _ = outcome(number)
    every = [finding for of_cause in findings.values() for finding in of_cause]
    spans = [finding for finding in every if "start_ns" in finding]
    for span in spans:
        inside = [one for one in spans if span["start_ns"] <= one["start_ns"] and one["end_ns"] <= span["end_ns"]]
        lost = sum(one["lost_s"] or 0 for one in inside)
        assert lost <= (span["end_ns"] - span["start_ns"]) / 1e9 * 1.000001
    for finding in every:
        assert finding["lost_s"] is None or finding["lost_s"] > 0, "unknown is null, never 0"
        assert finding["severity"] is None or 0 < finding["severity"] <= 1
        assert set(finding["threshold"]) <= set(finding["evidence"])


def test_every_cause_has_a_case():
    labelled = {cause for number in range(len(CASES)) for cause in outcome(number)[0]}
    # Of traces alone: tests/traces/test_host_callbacks.py. Of several fits:
    # tests/diagnosis/test_fits_in_series.py.
    assert labelled == {rule.cause for rule in RULES} - {"host_callback", "between_fits"}


def test_most_are_placed_to_a_tenth():
    placed = [overlap for number in range(len(CASES)) for overlap in overlaps(*outcome(number))]
    assert median(placed) >= 0.9
