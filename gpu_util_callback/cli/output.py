"""Capabilities of standard output: colour and Unicode."""

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_util_callback.report.screen import Detail

__all__ = ["add_arguments", "color", "detail", "unicode", "width"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much to print, and how."""
    parser.add_argument("--evidence", action="store_true",
                        help="show the evidence and the fix of every finding in full")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help="show every run, finding and GPU; the summary folds them")  # fmt: skip
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="default: the terminal's")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                        help="default: auto")  # fmt: skip


def detail(args: argparse.Namespace) -> "Detail":
    """Return how much to show."""
    from gpu_util_callback.report.screen import Detail

    return Detail(evidence=args.evidence, all=args.all)


def width(given: int | None) -> int:
    """Return the columns to use."""
    return given if given and given > 0 else shutil.get_terminal_size((80, 24)).columns


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
