"""The doctor's results, as text and as JSON."""

import shutil
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["OK", "PROBLEM", "WARNING", "Line", "Report"]

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_ORDER = (OK, WARNING, PROBLEM)
_MARKS = {OK: "  ok   ", WARNING: "  warn ", PROBLEM: "  FAIL "}
_COLORS = {OK: "\033[32m", WARNING: "\033[33m", PROBLEM: "\033[31m"}
_BOLD, _RESET = "\033[1m", "\033[0m"


@dataclass(frozen=True)
class Line:
    """The result of one check.

    section: "driver", "gpu", "environment", "tensorflow", … status: "ok", "warning" or "problem".
    cure: what to do, "" when there is nothing to do.
    """

    section: str
    check: str
    status: str
    text: str
    cure: str = ""


@dataclass(frozen=True)
class Report:
    """All lines, and the facts they rest on."""

    lines: list[Line]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The worst status of all lines."""
        return max((line.status for line in self.lines), key=_ORDER.index, default=OK)

    def to_json(self) -> dict[str, Any]:
        """Return {"version", "status", "lines": [a Line's fields], "facts": probes' answers}."""
        return {
            "version": 1,
            "status": self.status,
            "lines": [asdict(line) for line in self.lines],
            "facts": self.facts,
        }

    def render(self, color: bool = False, width: int | None = None) -> str:
        """Return one screen of text; the verdict is its last line."""
        width = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
        out: list[str] = []
        section = None
        for line in self.lines:
            if line.section != section:
                section = line.section
                out.append(f"{_BOLD}{section}{_RESET}" if color else section)
            mark = (
                f"{_COLORS[line.status]}{_MARKS[line.status]}{_RESET}"
                if color
                else _MARKS[line.status]
            )
            words = textwrap.wrap(f"{line.check}: {line.text}", width - 7) or [""]
            out.append(mark + words[0])
            out += [" " * 9 + rest for rest in words[1:]]
            if line.cure and line.status != OK:
                cure = textwrap.wrap(f"→ {line.cure}", width - 9, subsequent_indent="  ")
                out += [" " * 9 + part for part in cure]
        out.append(self._verdict())
        return "\n".join(out)

    def _verdict(self) -> str:
        count = {status: sum(line.status == status for line in self.lines) for status in _ORDER}
        if self.status == OK:
            return "No problems found."
        parts = [
            f"{count[status]} {word}{'s' if count[status] > 1 else ''}"
            for status, word in ((PROBLEM, "problem"), (WARNING, "warning"))
            if count[status]
        ]
        return " and ".join(parts) + "."
