"""Capabilities of standard output: colour and Unicode."""

import os
import sys

__all__ = ["color", "unicode"]


def color(wish: str = "auto") -> bool:
    """Return whether to write ANSI colours; "auto" = if the terminal supports them."""
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def unicode() -> bool:
    """Return whether the characters of bars and tables can be written."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▒▓■●–×µ·…←".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
