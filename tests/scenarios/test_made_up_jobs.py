"""Causes are found in made-up runs where they are, and nowhere else.

The jobs were written from what real ones look like, not from the rules; none was changed to suit a
rule but for labels that were wrong.
"""

import tempfile
from functools import cache
from statistics import median

import pytest
from jobs_healthy import HEALTHY
from jobs_held_up import HELD_UP
from jobs_mixed import MIXED
from jobs_on_gpus import ON_GPUS
from jobs_traced import TRACED
from scenario_cases import gpu_cases, memory_cases
from scoring import by_cause, check, overlaps

from gpu_util_callback.diagnosis import RULES, diagnose
from gpu_util_callback.recording import read_recordings

CASES = [*HELD_UP, *ON_GPUS, *TRACED, *MIXED, *HEALTHY, *memory_cases(), *gpu_cases()]


@cache
def outcome(number: int) -> tuple[dict, dict, int]:
    """(truth, findings by cause, steps) of a run that was recorded and read again."""
    case = CASES[number]
    run, truth = case.build()
    with tempfile.TemporaryDirectory() as folder:
        run.write(folder, case.status)
        [recording] = read_recordings(folder)
        return truth, by_cause(diagnose(recording)), run.step


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_job(number):
    check(*outcome(number))


def test_every_cause_has_a_case():
    labelled = {cause for number in range(len(CASES)) for cause in outcome(number)[0]}
    # Of traces alone: tests/traces/test_host_callbacks.py. Of several fits:
    # tests/diagnosis/test_fits_in_series.py.
    assert labelled == {rule.cause for rule in RULES} - {"host_callback", "between_fits"}


# Thresholds that fire below; all others fire above.
BELOW = {
    ("cpu_fallback", "gpu_active_pct"),
    ("gpus_unused", "unused_active_pct"),
    ("launch_bound", "gpu_active_pct"),
    ("launch_bound", "mean_kernel_us"),
    ("memory_limit", "limit_pct"),
    ("memory_spill", "memory_active_pct"),
    ("memory_spill", "power_pct"),
    ("small_batch", "sm_active_pct"),
    ("small_batch", "vram_used_pct"),
    ("small_model", "parameters"),
    ("small_model", "sm_active_pct"),
    ("sync_bound", "gpu_active_pct"),
    ("sync_bound", "idle_ms_per_step"),
    ("sync_bound", "step_ms"),
}


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
    assert {cause for cause, _ in told} == {rule.cause for rule in RULES if rule.thresholds} - {
        "between_fits",
        "host_callback",
    }


def test_most_are_placed_to_a_tenth():
    placed = [overlap for number in range(len(CASES)) for overlap in overlaps(*outcome(number))]
    assert median(placed) >= 0.9
