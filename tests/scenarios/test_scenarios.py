"""Causes are found where they are, and nowhere else, over labelled runs that no made-up job covers."""

import pytest
from scenario_cases import gpu_cases, memory_cases
from scoring import by_cause, check
from test_made_up_jobs import CASES as JOBS

from gpu_util_callback.diagnosis import RULES

CASES = [*memory_cases(), *gpu_cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    run, truth = case.build()
    check(truth, by_cause(run.diagnose()), run.step)


def test_every_cause_has_a_case():
    labelled = {cause for case in [*CASES, *JOBS] for cause in case.build()[1]}
    # Of traces alone: tests/traces/test_host_callbacks.py. Of several fits:
    # tests/diagnosis/test_fits_in_series.py.
    assert labelled == {rule.cause for rule in RULES} - {"host_callback", "between_fits"}
