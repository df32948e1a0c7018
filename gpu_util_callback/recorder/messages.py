"""Messages printed while a fit is recorded: one line for each topic, once."""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any

from gpu_util_callback.redaction import error_text, printable

__all__ = ["off", "reason_of", "say", "verdict", "warn"]

log = logging.getLogger("gpu_util_callback")

# A script that fits again and again (reinforcement learning, folds) should print no verdict each.
_SHORT_S = 5

_warned: set[tuple[str, str]] = set()  # said once per process, not once per fit


def warn(what: str, reason: str, cure: str = "") -> None:
    """Log that something is missing, why, and what to do about it; the first time only."""
    if (what, reason) not in _warned:
        _warned.add((what, reason))
        log.warning("gpu_util_callback: %s: %s%s", what, reason, f" ({cure})" if cure else "")


def off(source: str) -> str:
    """Return `input wait is off`, `profiler windows are off`."""
    head = re.split(r" of | about ", source)[0]
    several = head.endswith("s") and not head.endswith("sis")
    return f"{source} {'are' if several else 'is'} off"


def say(text: str) -> None:
    """Print a line while training continues. Keras' progress bar leaves the cursor in mid-line."""
    _print(f"\ngpu-util: {text}", sys.stderr)


def _print(text: str, stream: Any) -> None:
    """Print text, in plain characters where the console lacks some of its own."""
    text = printable(text)
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        from gpu_util_callback.report.screen import Pen

        plain = Pen(width=110, color=False, unicode=False).finish(text.split("\n"))
        print(plain, end="", file=stream, flush=True)


def verdict(path: str, thresholds: dict | None, interrupted: bool = False) -> None:
    """Print two lines about where the time of a closed recording went.

    Nothing is printed for a fit of seconds without a finding, where an earlier one has printed its
    verdict or the user ended it.
    """
    try:
        from gpu_util_callback.diagnosis import run_report
        from gpu_util_callback.recording import read_recordings
        from gpu_util_callback.report.terminal import two_lines

        recording = next(iter(read_recordings(path)))
        run = run_report(recording, thresholds)
        short = (run["wall_s"] or 0) < _SHORT_S and not run["findings"] and not run["spans"]
        if not (short and (interrupted or run["fit_index"])):
            _print(("\n" if interrupted else "") + two_lines(run), sys.stdout)
    except Exception as error:
        log.debug("gpu_util_callback: no verdict: %s", error, exc_info=True)


def reason_of(error: BaseException) -> str:
    """Return the reason in one line."""
    if isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno):
        return error.strerror
    return error_text(error)
