"""The running diagnosis of a fit, as the recorder stores and prints it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis import Announcer, Diagnosis
from gpu_util_callback.recording.account import Account

__all__ = ["RunningDiagnosis"]


class RunningDiagnosis:
    """Diagnosis that new rows are added to, with the account it rests on.

    Args:
        facts: the manifest's facts at the start.
        thresholds: the user's, or None.
    """

    def __init__(self, facts: Mapping[str, Any], thresholds: Mapping | None):
        self._diagnosis = Diagnosis(facts, thresholds)
        self._account = Account()
        self._announcer = Announcer()

    def add(self, tables: Mapping[str, Mapping[str, Any]], blocks: Iterable[Any]) -> None:
        """Add new rows by table, and new sample blocks."""
        if "steps" in tables:
            self._account.add_steps(tables["steps"])
        if "phases" in tables:
            self._account.add_phases(tables["phases"])
        groups: dict[str, dict[str, np.ndarray]] = {}
        for block in blocks:
            columns = {name: block.values[:, i] for i, name in enumerate(block.columns)}
            columns["time_ns"] = block.time_ns
            known = groups.get(block.group)
            if known is not None and known.keys() == columns.keys():
                columns = {name: np.concatenate([known[name], columns[name]]) for name in columns}
            elif known is not None:  # the sampled columns have changed in between
                self._diagnosis.add({}, {block.group: known})
            groups[block.group] = columns
        self._diagnosis.add(tables, groups)

    def result(
        self, facts: Mapping[str, Any], start_ns: int, now_ns: int, ended: bool
    ) -> dict[str, Any]:
        """Return the diagnosis so far, as the manifest keeps it."""
        account = self._account.result(start_ns, now_ns)
        return self._diagnosis.result(facts=facts, account=account, now_ns=now_ns, ended=ended)

    def news(self, found: Mapping[str, Any]) -> list[str]:
        """Return a line per cause, once, when it is established and has cost enough to matter."""
        return self._announcer.lines(found)
