"""Options that several commands share, and what standard output can show."""

import argparse
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_util_callback.errors import UnusableInput

if TYPE_CHECKING:
    from gpu_util_callback.report.screen import Detail


def add_thresholds(parser: argparse.ArgumentParser) -> None:
    """Add the options `--threshold` and `--rules`."""
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="CAUSE.NAME=VALUE",
        help="override a threshold of a rule (may be repeated)",
    )
    parser.add_argument("--rules", action="store_true", help="list the causes and their thresholds, with reasons")


def print_rules(of_traces: bool = False) -> int:
    """Print the causes and their thresholds, or those that a trace can show; return 0."""
    from gpu_util_callback.diagnosis import RULES
    from gpu_util_callback.report.terminal import rules_text

    rules = [rule for rule in RULES if rule.unknown_in_trace or not of_traces]
    columns, _, more_than_ascii = terminal()
    print(rules_text(columns, rules, more_than_ascii), end="")
    return 0


def thresholds_given(args: argparse.Namespace) -> dict[str, str]:
    """Return the thresholds of the command line: `{"input_bound.wait_pct": "10"}`.

    Raises:
        UnusableInput: one is malformed, does not exist or is no number; nothing has been read by then.
    """
    from gpu_util_callback.diagnosis import thresholds_in_force

    thresholds: dict[str, str] = {}
    for text in args.threshold:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise UnusableInput(f"--threshold {text!r}: write CAUSE.NAME=VALUE")
        thresholds[name.strip()] = value
    thresholds_in_force(thresholds)
    return thresholds


def amount(text: str) -> float:
    """Parse a finite number ≥ 0 for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a non-negative number, got {text!r}")
    return number


def count(text: str) -> int:
    """Parse a whole number from 1 on for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much to print, and how."""
    parser.add_argument(
        "--evidence", action="store_true", help="show the evidence and the fix of every finding in full"
    )
    parser.add_argument("--all", action="store_true", help="show every run, finding and GPU; the summary folds them")


def detail(args: argparse.Namespace) -> "Detail":
    """Return how much to show."""
    from gpu_util_callback.report.screen import Detail

    return Detail(evidence=args.evidence, all=args.all)


def terminal() -> tuple[int, bool, bool]:
    """Return what standard output can show: its columns, whether colours, whether more than ASCII."""
    return shutil.get_terminal_size((80, 24)).columns, color(), unicode()


def color() -> bool:
    """Return whether to write ANSI colours: if the terminal supports them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def unicode() -> bool:
    """Return True if standard output can show the characters of bars and tables."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▒▓■●–×µ·…←".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def write_text(path: str, pieces: Iterable[str]) -> int:
    """Write a file that the command line names; return its number of characters.

    Args:
        pieces: of its text.

    Raises:
        UnusableInput: it cannot be written.
    """
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            return sum(map(file.write, pieces))
    except OSError as error:
        raise UnusableInput(f"cannot write {path}: {error.strerror}") from error


def write_file(path: str, pieces: Iterable[str]) -> None:
    """Write a file that the command line names, and say its size on stderr."""
    print(f"wrote {path} ({write_text(path, pieces) / 1e6:.1f} MB)", file=sys.stderr)


class StatusLine:
    """One line on a terminal's stderr, rewritten now and then.

    Args:
        after_s: what takes less time shows none.
    """

    def __init__(self, after_s: float = 0.0) -> None:
        self._length = 0
        self._next = time.monotonic() + after_s if sys.stderr.isatty() else math.inf

    def show(self, text: str, last: bool = False) -> None:
        """Show the text, not more than five times a second unless it is the last one."""
        now = time.monotonic()
        if now >= self._next or (last and self._length):
            self._next = now + 0.2
            print(f"\r{text.ljust(self._length)}", end="", file=sys.stderr, flush=True)
            self._length = len(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._length:
            print(f"\r{' ' * self._length}\r", end="", file=sys.stderr, flush=True)
            self._length = 0
