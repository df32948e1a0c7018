"""Causes are found in made-up runs where they are, and nowhere else.

The jobs were written from what real ones look like, not from the rules; none was changed to suit a
rule but for labels that were wrong.
"""

import tempfile
from functools import cache
from statistics import median
from typing import NamedTuple

import pytest
from agreement import check_agreement
from jobs_healthy import HEALTHY
from jobs_held_up import HELD_UP
from jobs_mixed import MIXED
from jobs_on_gpus import ON_GPUS
from jobs_traced import TRACED
from scenario_cases import data_cases, gpu_cases, input_cases, memory_cases
from scoring import Truth, by_cause, check, overlaps

from gpu_util_callback.diagnosis import RULES, logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.screen import Detail
from gpu_util_callback.report.terminal import render
from tensorboard_plugin.replies import recording_reply

CASES = [*HELD_UP, *ON_GPUS, *TRACED, *MIXED, *HEALTHY, *memory_cases(), *gpu_cases(), *input_cases(), *data_cases()]
EACH = pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])


class Outcome(NamedTuple):
    """What is in a run, and what its report, the tab and the terminal say of it."""

    truth: Truth
    steps: int
    run: dict
    reply: dict
    text: str

    @property
    def found(self) -> tuple[Truth, dict, int]:
        return self.truth, by_cause(self.run), self.steps


@cache
def outcome(number: int) -> Outcome:
    """Record a case and read it again."""
    case = CASES[number]
    made, truth = case.build()
    with tempfile.TemporaryDirectory() as folder:
        made.write(folder, case.status)
        [recording] = read_recordings(folder)
        report = logdir_report([recording])
        [run] = report["runs"]
        text = " ".join(render(report, 100, detail=Detail(True, True)).split())
        return Outcome(truth, made.step, run, recording_reply(recording, "1", run), text)


@EACH
def test_causes_are_found_where_they_are(number):
    check(*outcome(number).found)


@EACH
def test_no_number_contradicts_its_sentence(number):
    check_agreement(*outcome(number)[2:])


def test_every_cause_has_a_case():
    labelled = {cause for number in range(len(CASES)) for cause in outcome(number).truth}
    # Of traces alone: tests/traces/test_host_callbacks.py. Of several fits:
    # tests/diagnosis/test_fits_in_series.py.
    assert labelled == {rule.cause for rule in RULES} - {"host_callback", "between_fits"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fast enough", "is fast enough on average"),
        ("fast on threads", "is fast enough on average"),
        ("together too slow", "With the other stages on its thread that is 26 ms"),
        ("one too slow", "takes 26 ms a batch"),
        ("nothing ahead", "makes each batch while the loop waits"),
    ],
)
def test_a_stage_is_blamed_for_what_it_takes(name, said):
    [number] = [number for number, case in enumerate(CASES) if case.name == f"pipeline: {name}"]
    [finding] = by_cause(outcome(number).run)["input_bound"]
    assert said in finding["advice"]["text"]
    if "fast" in name:
        assert "slowest_stage" not in finding["evidence"]
        assert not finding["saves_s"], "nothing is promised of a cause that is not known"


# Thresholds that fire below; all others fire above.
BELOW = {
    ("cpu_fallback", "gpu_active_pct"),
    ("gpus_unused", "unused_active_pct"),
    ("data_ended", "batches_then"),
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
        for cause, findings in by_cause(outcome(number).run).items():
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
    placed = [overlap for number in range(len(CASES)) for overlap in overlaps(*outcome(number).found)]
    assert median(placed) >= 0.9
