"""The results as lines of text."""

from __future__ import annotations

from typing import Any

from evidence.instruments import agreement, shown
from evidence.scenarios import Scenario
from evidence.verdicts import Verdict

STAND_IN = (
    "stand-in: not measured on a GPU. The driver's answers and the trace's GPU events are played "
    "by a script; only the host's times are real."
)
_HEAD = ("scenario", "expected", "found", "NVML %", "SM %", "kernels %", "+ copies %", "agree", "verdict")


def line(found: dict[str, Any], verdict: Verdict, took_s: float) -> str:
    """One line, as a scenario ends."""
    said = ", ".join(found.get("causes", ())) or ("nothing" if "causes" in found else "no answer")
    because = f": {verdict.note}" if verdict.note else ""
    return f"   -> {said}  [{'right' if verdict.right else 'WRONG'}{because}]  {took_s:.0f} s"


def table(results: list[tuple[Scenario, dict[str, Any], Verdict]]) -> str:
    """The table of all scenarios; NVML, SM and the trace's kernels and copies are means over the steps."""
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
                shown(found.get("any_busy_pct")),
                agreement(found),
                "right" if verdict.right else "WRONG",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    gpus = {f"{found['gpu']}, driver {found.get('driver')}" for _, found, _ in results if found.get("gpu")}
    return "\n".join([*sorted(gpus), lines[0], "-" * len(lines[0]), *lines[1:]])


def notes(results: list[tuple[Scenario, dict[str, Any], Verdict]]) -> str:
    """What a reader of the table asks next: why a verdict is wrong, and on which numbers."""
    lines = []
    for scenario, found, verdict in results:
        if verdict.note:
            lines.append(f"{scenario.name}: {verdict.note}")
        if verdict.right:
            continue
        for thing in found.get("findings", ()):
            numbers = ", ".join(f"{name} {value}" for name, value in thing["evidence"].items())
            lines.append(f"  {thing['cause']} ({thing['lost_s']} s): {numbers}"[:400])
        for entry in found.get("unavailable", ()):
            lines.append(f"  not measured: {entry['source']}: {entry['reason']}"[:300])
        if "causes" not in found and not found.get("no_gpu"):
            lines += [f"  | {said[:160]}" for said in found.get("log", ())[-12:]]
    return "\n".join(lines)
