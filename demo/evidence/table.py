"""The results as lines of text."""

from __future__ import annotations

from typing import Any

from evidence.findings import agreement, shown
from evidence.scenarios import Scenario
from evidence.verdicts import Verdict

__all__ = ["STAND_IN", "line", "table"]

STAND_IN = (
    "stand-in: not measured on a GPU. The driver's answers and the trace's GPU events are played "
    "by a script; only the host's times are real."
)
_HEAD = ("scenario", "expected", "found", "NVML %", "SM %", "trace %", "agree", "verdict")


def line(scenario: Scenario, found: dict[str, Any], verdict: Verdict) -> str:
    """One line, as a scenario ends."""
    said = f"{scenario.name}: {scenario.wrong}\n   -> "
    said += ", ".join(found.get("causes", ())) or ("nothing" if "causes" in found else "no answer")
    return said + f"  [{'right' if verdict.right else 'WRONG'}{_because(verdict)}]"


def _because(verdict: Verdict) -> str:
    return f": {verdict.note}" if verdict.note else ""


def table(results: list[tuple[Scenario, dict[str, Any], Verdict]]) -> str:
    """The table of all scenarios; NVML, SM and trace are means over the training steps."""
    rows = [_HEAD]
    for scenario, found, verdict in results:
        rows.append(
            (
                scenario.name,
                ", ".join(sorted(scenario.expected)) or "nothing",
                ", ".join(found.get("causes", ())) or ("nothing" if "causes" in found else "-"),
                shown(found.get("nvml_pct")),
                shown(found.get("sm_active_pct")),
                shown(found.get("kernel_busy_pct")),
                agreement(found),
                "right" if verdict.right else "WRONG",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    gpus = {
        f"{found['gpu']}, driver {found.get('driver')}" for _, found, _ in results
        if found.get("gpu")
    }  # fmt: skip
    return "\n".join([*sorted(gpus), lines[0], "-" * len(lines[0]), *lines[1:]])
