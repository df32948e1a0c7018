"""Causes are found in jobs that were made up independently of the rules, and nowhere else.

The jobs were written from what real ones look like before the rules were read, the held-out ones
after the rules were mended; neither was changed to suit a rule but for labels that were wrong.
`pytest -s tests/scenarios/test_made_up_jobs.py` prints the tables.
"""

import tempfile
from functools import cache

import pytest
from held_out_causes import HELD_OUT_CAUSES
from held_out_healthy import HELD_OUT_HEALTHY
from held_out_mixed import HELD_OUT_MIXED
from jobs_alike import ALIKE
from jobs_healthy import HEALTHY
from jobs_held_up import HELD_UP
from jobs_on_gpus import ON_GPUS
from jobs_traced import TRACED
from scoring import by_cause, iou, score

from gpu_util_callback.diagnosis import RULES, diagnose
from gpu_util_callback.recording import read_recordings

KNOWN = [*HELD_UP, *ON_GPUS, *TRACED, *HEALTHY, *ALIKE]
HELD_OUT = [*HELD_OUT_CAUSES, *HELD_OUT_HEALTHY]
SETS = {"known": KNOWN, "held out": HELD_OUT, "mixed": HELD_OUT_MIXED}
CASES = [case for cases in SETS.values() for case in cases]
PRECISION, RECALL, IOU, LEAST_IOU = 1.0, 0.95, 0.9, 0.7


@cache
def outcome(number: int) -> tuple[dict, dict, int]:
    """(truth, findings by cause, steps) of a job that was recorded and read again."""
    case = CASES[number]
    job, truth = case.build()
    with tempfile.TemporaryDirectory() as folder:
        job.write(folder, case.status)
        [recording] = read_recordings(folder)
        return truth, by_cause(diagnose(recording)), job.step


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_job(number):
    truth, findings, steps = outcome(number)
    assert set(findings) == set(truth)
    for cause, spans in truth.items():
        if spans is not None:
            assert iou(spans, findings[cause], steps) >= LEAST_IOU, cause


# Thresholds that fire below; all others fire above.
BELOW = {
    ("cpu_fallback", "gpu_active_pct"),
    ("gpus_unused", "unused_active_pct"),
    ("launch_bound", "gpu_active_pct"),
    ("launch_bound", "mean_kernel_us"),
    ("memory_limit", "limit_pct"),
    ("small_batch", "sm_active_pct"),
    ("small_batch", "vram_used_pct"),
    ("small_model", "parameters"),
    ("small_model", "sm_active_pct"),
    ("sync_bound", "gpu_active_pct"),
    ("sync_bound", "idle_ms_per_step"),
    ("sync_bound", "step_ms"),
}


# Tried in scenarios and on traces of their own, not in made-up jobs.
APART = {"between_fits", "memory_spill", "host_callback", "half_precision_cpu"}


def test_evidence_is_what_fired():
    """Each threshold stands beside a number of the same name, on the side on which it fires."""
    told = set()
    for number in range(len(CASES)):
        for cause, findings in outcome(number)[1].items():
            for finding in findings:
                for name, limit in finding["threshold"].items():
                    value = finding["evidence"][name]
                    crossed = value <= limit if (cause, name) in BELOW else value >= limit
                    assert crossed, (CASES[number].name, cause, name, value, limit)
                    told.add((cause, name))
    assert told >= BELOW
    assert {cause for cause, _ in told} == {rule.cause for rule in RULES if rule.thresholds} - APART


@pytest.mark.parametrize("which", SETS)
def test_scores(which):
    first = CASES.index(SETS[which][0])
    numbers = range(first, first + len(SETS[which]))
    every = score((outcome(number) for number in numbers), which)
    assert every.precision >= PRECISION and every.recall >= RECALL
    every.overlaps.sort()
    assert every.overlaps[len(every.overlaps) // 2] >= IOU


def test_every_cause_and_many_healthy_jobs_are_there():
    assert len({case.name for case in CASES}) == len(CASES)
    truths = [outcome(number)[0] for number in range(len(CASES))]
    assert {cause for truth in truths for cause in truth} == {rule.cause for rule in RULES} - APART
    assert sum(not truth for truth in truths) >= 40
