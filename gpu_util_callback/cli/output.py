"""What standard output can show."""

import os
import sys

__all__ = ["color", "unicode"]


def color(wish: str = "auto") -> bool:
    """Whether to write ANSI colours: "always", "never", or "auto" = on a terminal that has them."""
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def unicode() -> bool:
    """Whether the characters of bars and tables can be written."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▒▓■●–×µ·…←".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
