"""Random jobs: the healthy ones make no finding, the faulty ones make theirs."""

import pytest
from random_jobs import faulty, healthy
from scoring import by_cause, iou, score

from gpu_util_callback.diagnosis import Diagnosis

HEALTHY, FAULTY = 80, 60


def claims_of(job) -> dict[str, list[dict]]:
    diagnosis = Diagnosis(job.facts)
    diagnosis.add(job.tables(), job.samples())
    return by_cause(diagnosis.result(now_ns=job.now, ended=True))


@pytest.mark.parametrize("seed", range(HEALTHY))
def test_a_healthy_job(seed):
    assert claims_of(healthy(seed)) == {}


def test_faulty_jobs():
    outcomes = []
    for seed in range(FAULTY):
        job, cause, spans = faulty(seed)
        findings = claims_of(job)
        outcomes.append(({cause: spans}, findings, job.step))
        if set(findings) != {cause} or iou(spans, findings[cause], job.step) < 0.8:
            found = {one: [(c["start_step"], c["end_step"]) for c in of] for one, of in findings.items()}
            print(f"seed {seed}: {cause} at {spans}, found {found}")
    every = score(outcomes, "random faulty jobs")
    assert every.precision == 1.0 and every.recall >= 0.95
    assert sorted(every.overlaps)[len(every.overlaps) // 2] >= 0.9
