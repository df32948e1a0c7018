"""Text as a terminal can show it: of its width, in its colours, in its characters."""

import re
import textwrap
from collections.abc import Sequence

__all__ = ["Pen", "tame"]

_PLAIN = str.maketrans({"×": "x", "–": "-", "—": "-", "·": "-", "µ": "u", "…": "...", "→": "->",
                        "≥": ">=", "≤": "<=", "’": "'", "°": " "})  # fmt: skip
# A number and its unit stay on one line.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[nµum]?s|[mhd]|[GM]iB|GB/s|MHz|W)\b)")
_HELD = "\u00a0"
# Names come from files: what would steer the terminal, or turn its lines round, is no name. Colours
# are ours.
_STEERS = re.compile(r"(\x1b\[\d+m)|[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def tame(line: str) -> str:
    """A line without what steers a terminal, but for our colours."""
    return _STEERS.sub(lambda found: found[1] or "?", line)


class Pen:
    """Colour and characters as the terminal can show them."""

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
        if not self.unicode:  # before it is measured: some of it gets longer
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
