"""Stretches of a few seconds that only gauges tell of are placed where steps got slower."""

from random import Random
from statistics import median

import pytest
from scoring import by_cause, iou
from simulated_boards import A100, H100, RTX2080, T4, V100
from simulated_jobs import Job

STRETCHES, LENGTH_S = 3, 4
SPARSE = {"hz": 2, "without": ("ring",)}


def played(cause: str, seed: int, **job) -> tuple[Job, list[tuple[int, int]]]:
    """A job that is slowed down three times, and when."""
    random = Random(seed)
    board = random.choice([A100, V100, RTX2080, T4])
    one = Job(seed=seed, board=board, gpus=2 if cause == "imbalance" else 1, **job)
    usual, slower = random.choice([12, 25, 40, 90]), random.uniform(1.35, 2)
    clock = 0.985 * board.clock_mhz
    spans = []
    for stretch in range(STRETCHES + 1):
        if cause == "contention":
            one.set(utilization_other_pct=0, utilization_process_pct=97)
        elif cause == "throttled":
            one.set(sm_clock_mhz=clock, throttle_thermal_pct=0, temperature_c=64)
        one.train(round(random.uniform(10_000, 20_000) / usual), gpu=usual)
        if stretch == STRETCHES:
            break
        if cause == "contention":
            others = 100 * (1 - 1 / slower)
            one.set(utilization_other_pct=others, utilization_process_pct=98 - others)
        elif cause == "throttled":
            one.set(sm_clock_mhz=clock / slower, throttle_thermal_pct=95, temperature_c=90)
        share = [0.98, 0.78 / slower] if cause == "imbalance" else 0.99
        count = round(1000 * LENGTH_S / usual / slower)
        spans.append(one.train(count, gpu=usual * slower, share=share))
    return one, spans


@pytest.mark.parametrize(
    "cause, job",
    [("contention", {}), ("contention", SPARSE), ("throttled", {}), ("throttled", SPARSE), ("imbalance", {})],
)
def test_it_is_placed_well(cause, job):
    overlaps = []
    for seed in range(10):
        one, spans = played(cause, seed, **job)
        findings = by_cause(one.diagnose())
        assert set(findings) == {cause}
        overlaps.append(iou(spans, findings[cause], one.step))
    assert median(overlaps) >= 0.95 and min(overlaps) >= 0.85, sorted(overlaps)


def test_an_end_stays_where_steps_do_not_change():
    """Another's job that slows nothing down: its samples are all there is to go by."""
    job = Job(seed=1, board=A100)
    spans = []
    for others in (0, 30, 0):
        job.set(utilization_other_pct=others)
        spans.append(job.train(500, gpu=40, share=0.99))
    [finding] = job.diagnose()["spans"]
    assert iou([spans[1]], [finding], job.step) >= 0.85


@pytest.mark.parametrize("seed", range(8, 12))  # at 11 two of them seem a third apart for a while
def test_gpus_whose_samples_are_missed_at_other_times_are_alike(seed):
    job = Job(seed=seed, board=H100, gpus=8, hz=1, without=("ring",))
    job.drop = 0.2
    for _ in range(25):
        with job.epoch():
            job.train(25, gpu=80)
            job.phase("validation", 1.2)
    assert set(by_cause(job.diagnose())) == {"host_stall"}
