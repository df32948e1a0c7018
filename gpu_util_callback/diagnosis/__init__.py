"""Diagnosis of an idle GPU: pure rules over a recording's tables.

`rules` holds one cause per file; `engine` runs them over `evidence`, bounded sums of the tables;
`advice` holds the remedies; `run_reports` builds the report. Needs numpy and the standard library only.
"""

from gpu_util_callback.diagnosis.engine import (
    RULES,
    diagnose,
    judge,
    judge_together,
    thresholds_in_force,
    thresholds_set,
)
from gpu_util_callback.diagnosis.evidence.run_evidence import Evidence, Run
from gpu_util_callback.diagnosis.run_reports import logdir_report, run_report
from gpu_util_callback.diagnosis.verdict import Announcer

__all__ = [
    "RULES",
    "Announcer",
    "Evidence",
    "Run",
    "diagnose",
    "judge",
    "judge_together",
    "logdir_report",
    "run_report",
    "thresholds_in_force",
    "thresholds_set",
]
