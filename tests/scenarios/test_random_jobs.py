"""Random jobs: the healthy ones make no finding, the faulty ones make theirs."""

import pytest
from random_jobs import faulty, healthy
from scoring import by_cause, check

HEALTHY, FAULTY = 80, 60


@pytest.mark.parametrize("seed", range(HEALTHY))
def test_a_healthy_job(seed):
    assert by_cause(healthy(seed).diagnose()) == {}


@pytest.mark.parametrize("seed", range(FAULTY))
def test_a_faulty_job(seed):
    job, cause, spans = faulty(seed)
    check({cause: spans}, by_cause(job.diagnose()), job.step)
