"""The account that a judgement makes of its own evidence: as long as the run, and only if it adds up."""

import numpy as np

from gpu_util_callback.diagnosis import Evidence, Run, judge, thresholds_in_force
from gpu_util_callback.diagnosis.run_reports import Recorded

SECOND = 10**9


def steps(begins_s, length_s):
    """Rows of steps that compute all the time, one batch each."""
    start = np.round(np.asarray(begins_s) * SECOND).astype(np.int64)
    count, length_ns = len(start), round(length_s * SECOND)
    lengths = np.full(count, length_ns)
    return {
        "step": np.arange(count),
        "start_ns": start,
        "duration_ns": lengths,
        "body_ns": lengths,
        "batches": np.ones(count, np.int64),
    }


def run_of(rows, phases=None, now_s=None, **facts):
    evidence = Evidence(SECOND)
    evidence.add({"steps": rows, **({"phases": phases} if phases else {})})
    return Run({"started_ns": SECOND, **facts}, evidence, now_s and round(now_s * SECOND), ended=True)


def test_it_ends_with_the_run_even_where_a_phase_ends_later():
    """A profiler window that is open at the end of `fit` is stopped after it."""
    window = {"kind": ["profiler_window"], "name": [""], "start_ns": [4 * SECOND], "end_ns": [9 * SECOND]}
    run = run_of(steps([1, 2, 3], 0.5), window, now_s=5)
    assert run.account["wall_s"] == 4


def test_parts_longer_than_the_run_are_not_shown_nor_judged_by():
    """Rows that overlap by mistake."""
    run = run_of(steps(np.linspace(1, 2, 40), 0.5), now_s=2.5, fit={"loop": "custom"})
    assert run.account == {"wall_s": 1.5, "time_s": {}}
    judged = judge(run, thresholds_in_force(None))
    assert judged["verdict"]
    assert not any("unmarked" in span["id"] for span in judged["spans"])


def test_a_report_of_a_run_whose_account_was_left_out_has_its_length():
    recorded = Recorded({"started_ns": SECOND, "heartbeat_ns": 3 * SECOND})
    assert recorded.account == {"wall_s": 2, "time_s": {}}


def test_the_facts_of_a_judgement_do_not_change():
    facts = {"started_ns": SECOND, "fit": {"epochs": 2}}
    run = Run(facts, Evidence(SECOND))
    facts["fits"] = 3
    assert "fits" not in run.manifest
