"""Every cause is found where it is, and nowhere else: precision, recall and IoU over labelled runs.

`pytest -s tests/scenarios` prints the table.
"""

from functools import cache
from statistics import median

import pytest
from healthy_cases import healthy
from scenario_cases import all_along, in_place, pairs

from gpu_util_callback.diagnosis import RULES

CASES = [*in_place(), *all_along(), *pairs(), *healthy()]
PRECISION, RECALL, IOU = 1.0, 0.95, 0.9


@cache
def outcome(number: int) -> tuple[dict, dict, dict]:
    """(truth, cause -> claims, result) of a case."""
    run, truth = CASES[number].build()
    result = run.diagnose()
    claims: dict[str, list[dict]] = {}
    for claim in [*result["spans"], *result["findings"]]:
        claims.setdefault(claim["cause"], []).append(claim)
    return truth, claims, {"steps": run.step, **result}


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {step for first, end in spans for step in range(first, end)}


def iou(truth: list[tuple[int, int]], claims: list[dict], steps: int) -> float:
    found = covered([(claim.get("start_step", 0), claim.get("end_step", steps))
                     for claim in claims])  # fmt: skip
    meant = covered(truth)
    return len(found & meant) / len(found | meant)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_case(number):
    truth, claims, _ = outcome(number)
    assert set(claims) == set(truth)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_no_second_is_lost_twice(number):
    """Claims on the same time never lose more than that time, nor more than the run."""
    _, _, result = outcome(number)
    spans = result["spans"]
    for span in spans:
        inside = [one for one in spans if span["start_ns"] <= one["start_ns"]
                  and one["end_ns"] <= span["end_ns"]]  # fmt: skip
        lost = sum(one["lost_s"] or 0 for one in inside)
        assert lost <= (span["end_ns"] - span["start_ns"]) / 1e9 * 1.000001
    for claim in [*spans, *result["findings"]]:
        assert claim["lost_s"] is None or claim["lost_s"] > 0, "unknown is null, never 0"
        assert claim["severity"] is None or 0 < claim["severity"] <= 1
        assert set(claim["threshold"]) <= set(claim["evidence"])


def test_there_are_enough_cases():
    healthy = [case for case in CASES if case.kind == "healthy"]
    assert len(CASES) >= 60 and len(healthy) >= 20
    assert len({case.name for case in CASES}) == len(CASES)
    labelled = {cause for number in range(len(CASES)) for cause in outcome(number)[0]}
    assert labelled == {rule.cause for rule in RULES}


def test_scores():
    rows = []
    for rule in RULES:
        hits = false = missed = 0
        overlaps = []
        for number in range(len(CASES)):
            truth, claims, result = outcome(number)
            there, found = rule.cause in truth, rule.cause in claims
            hits += there and found
            false += found and not there
            missed += there and not found
            if there and found and truth[rule.cause] is not None:
                overlaps.append(iou(truth[rule.cause], claims[rule.cause], result["steps"]))
        rows.append((rule.cause, hits, false, missed, overlaps))
    print(f"\n{len(CASES)} cases, {sum(case.kind == 'healthy' for case in CASES)} of them healthy")
    print(f"{'cause':<22}{'cases':>6}{'precision':>11}{'recall':>8}{'median IoU':>12}")
    for cause, hits, false, missed, overlaps in rows:
        precision = hits / (hits + false) if hits + false else 1.0
        recall = hits / (hits + missed)
        overlap = f"{median(overlaps):.3f}" if overlaps else ""
        print(f"{cause:<22}{hits + missed:>6}{precision:>11.3f}{recall:>8.3f}{overlap:>12}")
    hits, false, missed = (sum(row[i] for row in rows) for i in (1, 2, 3))
    every = [overlap for row in rows for overlap in row[4]]
    print(f"{'all':<22}{hits + missed:>6}{hits / (hits + false):>11.3f}"
          f"{hits / (hits + missed):>8.3f}{median(every):>12.3f}")  # fmt: skip
    assert hits / (hits + false) >= PRECISION
    assert hits / (hits + missed) >= RECALL
    assert median(every) >= IOU
    assert min(every) >= 0.7
