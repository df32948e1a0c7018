"""A finding in the terminal: loss, evidence, advice and its saving."""

import re
import textwrap
from collections.abc import Mapping, Sequence

from gpu_util_callback.words import duration, evidence_rows, steps, times

__all__ = [
    "Pen",
    "code_lines",
    "finding_lines",
    "tame",
]

_PLAIN = str.maketrans({"×": "x", "–": "-", "—": "-", "·": "-", "µ": "u", "…": "...", "→": "->",
                        "≥": ">=", "≤": "<=", "’": "'", "°": " "})  # fmt: skip
# Keep a number and its unit on one line.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[nµum]?s|[mhd]|[GM]iB|GB/s|MHz|W)\b)")
_HELD = "\u00a0"
# Names come from files: control characters and bidirectional overrides are removed. Colours are
# added by us.
_STEERS = re.compile(r"(\x1b\[\d+m)|[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def tame(line: str) -> str:
    """Remove control sequences from a line, except our colours."""
    return _STEERS.sub(lambda found: found[1] or "?", line)


class Pen:
    """Colours and characters that the terminal supports."""

    def __init__(self, width: int, color: bool, unicode: bool):
        self.width = max(40, min(width, 110))
        self.color = color
        self.unicode = unicode

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        return self.paint(text, "2")

    def wrap(self, text: str, indent: str = "", first: str | None = None) -> list[str]:
        if not self.unicode:  # replace before measuring: some replacements are longer
            text = text.translate(_PLAIN)
        text = _BEFORE_UNIT.sub(_HELD, text)
        return textwrap.wrap(
            text, self.width, initial_indent=indent if first is None else first,
            subsequent_indent=indent, break_long_words=True, break_on_hyphens=False,
        )  # fmt: skip

    def finish(self, lines: Sequence[str]) -> str:
        text = "\n".join(tame(line).rstrip() for line in lines)
        text = text.replace(_HELD, " ") + "\n"
        if not self.unicode:
            text = text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
        return text


TOLD = 1.05  # "1× faster" is not worth printing
# Shown in a sentence of its own, or in the advice.
_ELSEWHERE = {"faster_up_to", "promise_rests_on", "stage_flags", "slowest_stage", "callback"}


def finding_lines(
    finding: Mapping, place: int, pen: Pen, run: Mapping | None = None, like: int | None = None
) -> list[str]:
    """Return a finding as lines, numbered by `place`.

    Args:
        run: the run it is about, if any.
        like: the place of an earlier finding with the same code to paste.
    """
    where = ""
    if "start_step" in finding:
        where = steps(finding["start_step"], finding["end_step"], run["steps"] if run else None)
    lost = ""
    if finding["lost_s"] is not None:
        lost = f"lost {duration(finding['lost_s'])}"
        if "start_step" in finding:
            span_s = (finding["end_ns"] - finding["start_ns"]) / 1e9
            lost += f" of {duration(span_s)}"
    about = ", ".join(part for part in (where, lost) if part)
    title = f"{place}. {finding['title']}"
    estimate = " (estimate)" if finding["confidence"] == "estimated" else ""
    lines = ["", pen.bold(pen.paint(title, "33")) + pen.dim(estimate)]
    if about:
        lines += pen.wrap(about, "   ")
    facts = _evidence(finding)
    if facts:
        lines += [pen.dim(line) for line in pen.wrap(facts, "   ")]
    text, code = finding["advice"]["text"], finding["advice"]["code"]
    if like is not None:
        text, code = f"What to change is the same as in {like}.", ""
    said = f"{text} {_saving(finding, run)}".strip()
    return lines + pen.wrap(said, "   ") + code_lines(code, pen)


def _saving(finding: Mapping, run: Mapping | None) -> str:
    """Return the saving of following the advice; "" if unknown (same wording as the tab)."""
    saves, lost = finding.get("saves_s"), finding["lost_s"]
    if not saves:
        return ""
    less = f" of the {duration(lost)} lost" if lost and saves < 0.95 * lost else ""
    # During training the elapsed time is newer than the diagnosis.
    wall = run["wall_s"] or 0 if run and run["status"] != "live" else 0
    gain = wall / (wall - saves) if wall > saves else 0
    faster = f": this run up to {times(gain)} faster" if gain >= TOLD else ""
    return f"Saves up to {duration(saves)}{less}{faster}."


def code_lines(code: str, pen: Pen) -> list[str]:
    """Return code within the width: a comment that does not fit next to its line goes above it."""
    shown: list[str] = []
    for line in code.splitlines():
        if len(line) > pen.width - 5:
            line, _, comment = line.partition("  # ")
            shown += pen.wrap(comment, "     # ") if comment else []
        indent = " " * (5 + len(line) - len(line.lstrip()))
        shown += pen.wrap(line.strip(), indent + "    ", indent)
    return [pen.paint(line, "32") for line in shown]


def _evidence(finding: Mapping) -> str:
    """Return the evidence as one line of prose, each number next to the threshold it crossed."""
    evidence = finding["evidence"]
    said = [
        f"{row['label']}: {row['value']}" + (f" ({row['rule']})" if row["rule"] else "")
        for row in evidence_rows(finding) if row["name"] not in _ELSEWHERE
    ]  # fmt: skip
    prose = "; ".join(said)
    if evidence.get("faster_up_to") and evidence["faster_up_to"] >= TOLD:
        prose += f". Up to {times(evidence['faster_up_to'])} faster here"
        if evidence.get("promise_rests_on"):
            prose += f", judging by {evidence['promise_rests_on']}"
    return f"{prose[:1].upper()}{prose[1:]}." if prose else ""
