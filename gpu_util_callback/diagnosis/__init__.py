"""Diagnosis of an idle GPU: pure rules over a recording's tables.

`rules` holds one cause per file; `engine` runs them over `evidence`, bounded sums of the tables;
`advice` holds the remedies; `run_reports` builds the report. Needs numpy and the standard library only.
"""

from gpu_util_callback.diagnosis.check import Check, failures
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.diagnosis.engine import RULES, RULES_VERSION, diagnose, judge, judge_together
from gpu_util_callback.diagnosis.evidence.run_evidence import Evidence, Run
from gpu_util_callback.diagnosis.rules import thresholds_in_force, thresholds_set
from gpu_util_callback.diagnosis.run_reports import logdir_report, run_report, run_reports
from gpu_util_callback.diagnosis.thresholds import meant
from gpu_util_callback.diagnosis.verdict import Announcer, news

__all__ = [
    "RULES",
    "RULES_VERSION",
    "Announcer",
    "Check",
    "Evidence",
    "Run",
    "comparison",
    "diagnose",
    "failures",
    "judge",
    "judge_together",
    "logdir_report",
    "meant",
    "news",
    "run_report",
    "run_reports",
    "thresholds_in_force",
    "thresholds_set",
]
