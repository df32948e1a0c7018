"""Whether what was found is what is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evidence.scenarios import Scenario


@dataclass(frozen=True)
class Verdict:
    """right: as it must be. note: why, where that is not plain from the causes."""

    right: bool
    note: str = ""


def judge(scenario: Scenario, found: dict[str, Any], stand_in: bool = False) -> Verdict:
    """Expected causes found, no others; what cannot be measured here must be named, not found.

    Args:
        found: what the scenario's child answered; {"error": …} where it failed.
        stand_in: there was no GPU; where a backend's trace cannot be played, it may be absent.
    """
    if "error" in found:
        return Verdict(False, found["error"])
    causes = set(found["causes"])
    surplus = causes - scenario.expected - scenario.allowed
    missing = scenario.expected - causes
    if surplus:
        return Verdict(False, "not true: " + ", ".join(sorted(surplus)))
    if not missing:
        return Verdict(True)
    if stand_in and scenario.needs_trace and not found["windows"]:
        return Verdict(True, "cannot be known without a GPU's trace, and nothing was claimed")
    if scenario.needs_pids and _hides_pids(found):
        return Verdict(True, "the driver hides the process ids here, and says so")
    return Verdict(False, "not found: " + ", ".join(sorted(missing)) + _blind(scenario, found))


def _hides_pids(found: dict[str, Any]) -> bool:
    return any("process ids" in entry["source"] for entry in found["unavailable"])


def _blind(scenario: Scenario, found: dict[str, Any]) -> str:
    """Where a cause shows in profiler windows alone and there are none: why there are none."""
    if not scenario.needs_trace or found["windows"]:
        return ""
    reasons = [
        entry["reason"]
        for entry in found["unavailable"]
        if "profil" in entry["source"].lower() or "window" in entry["source"].lower()
    ]
    return "; no profiler window shows a GPU" + "".join(f": {reason}" for reason in reasons[:1])
