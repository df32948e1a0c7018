"""Messages printed while a fit is recorded: one line for each topic, once.

A thread of its own writes them: a full pipe, a closed stream or a logging handler that raises holds
up nobody else. Nothing in here raises.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import select
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

from gpu_util_callback.redaction import cleaned, error_text, printable

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import Headline, RunReport

log = logging.getLogger("gpu_util_callback")

# A script that fits again and again (reinforcement learning, folds) should print no verdict each.
_SHORT_S = 5
MOST_WAITING = 100  # messages; later ones are dropped where nobody reads the earlier ones
DRAIN_S = 0.2  # how long the end of a fit waits for its messages, so that they come in order

# A verdict on all fits of a script is printed again after this many times as many fits.
_AGAIN = 4
_MANY = 5  # short fits: from here on they get one line together, and none of their own
_fits_at_last_verdict: dict[str, int] = {}  # topic -> fits at the last time

_warned: set[tuple[str, str]] = set()  # said once per process, not once per fit
_results_to: list[str] = ["stdout"]  # the stream of verdicts


class _Printer:
    """A thread that writes messages, begun with the first one."""

    def __init__(self, name: str = "gpu-util-messages") -> None:
        self._name = name
        self._waiting: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unreached: threading.Event | None = None  # what a `drain` waited for in vain

    def put(self, write: Callable[[], object]) -> None:
        """Have a message written, in order; never waits for the stream, never raises.

        Without a thread the messages are written here. Beyond `MOST_WAITING` messages are dropped.
        """
        try:
            if self._waiting.qsize() < MOST_WAITING:
                self._waiting.put(write)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        except Exception:  # no more threads, or no memory
            self._thread = None
            while not self._waiting.empty():
                _quietly(self._waiting.get_nowait())

    def drain(self, deadline_s: float) -> None:
        """Wait until the messages so far are written, unless an earlier wait timed out and is still unanswered."""
        if self._unreached is not None and not self._unreached.is_set():
            return
        self._unreached = None
        if self._waiting.empty() and self._thread is None:
            return
        reached = threading.Event()  # set by the printer after all messages so far
        self.put(reached.set)
        if not reached.wait(deadline_s):
            self._unreached = reached

    def _work(self) -> None:
        while True:
            _quietly(self._waiting.get())


def _await_reader(stream: TextIO) -> None:
    """Wait while a pipe is full: inside a write, the stream's lock would hold up Python's end."""
    try:
        select.select([], [stream.fileno()], [])
    except (AttributeError, OSError, ValueError):  # no file, or none that can be waited for
        pass


def _quietly(write: Callable[[], object]) -> None:
    """Write; whatever a stream or handler raises is left out."""
    try:
        write()
    except BaseException:  # a closed stream, a handler that raises (even `SystemExit`)
        pass


_printer = _Printer()
_caller = _Printer("gpu-util-calls")  # of the program's own functions: one that waits holds up no message


def _reset_in_child() -> None:
    """Reset the printers in a forked process, which has no other threads."""
    global _printer, _caller
    _printer, _caller = _Printer(), _Printer("gpu-util-calls")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def drain(deadline_s: float = DRAIN_S) -> None:
    """Wait until the messages so far are written, up to a deadline."""
    _printer.drain(deadline_s)


def tell(argument: str, function: Callable[[dict[str, Any]], object] | None, event: Mapping[str, Any]) -> None:
    """Call the program's own function with an event, on a thread that nobody waits for. Its first error is logged.

    Args:
        argument: by which it was given: `on_stuck`.
        function: None = nothing is called.
        event: is passed as a dictionary, without secrets.
    """
    if function is None:
        return
    texts = {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}

    def call() -> None:
        try:
            function(cleaned(texts))
        except Exception as error:
            warn(argument, f"raised {error_text(error)}")

    _caller.put(call)


def drain_calls(deadline_s: float) -> None:
    """Wait until the program's own functions have been called, up to a deadline."""
    _caller.drain(deadline_s)


def note(text: str) -> None:
    """Log a line."""

    def write() -> None:
        _await_reader(sys.stderr)
        log.warning("gpu_util_callback: %s", printable(text))

    _printer.put(write)


def warn(subject: str, reason: str, cure: str = "") -> None:
    """Log that something is missing, why, and what to do about it; the first time only."""
    if (subject, reason) not in _warned:
        _warned.add((subject, reason))
        note(f"{subject}: {reason}{f' ({cure})' if cure else ''}")


def off(source: str) -> str:
    """Return `input wait is off`, `profiler windows are off`."""
    head = re.split(r" of | about ", source)[0]
    several = head.endswith("s") and not head.endswith("sis")
    return f"{source} {'are' if several else 'is'} off"


def leave_stdout_alone() -> None:
    """Print verdicts to stderr: standard output holds the results of a program run unchanged."""
    _results_to[0] = "stderr"


def say(text: str) -> None:
    """Print a line while training continues. Keras' progress bar leaves the cursor in mid-line."""
    _print(f"\ngpu-util: {text}", sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    """Print text; in ASCII and without symbols where the console's encoding lacks some."""

    def write() -> None:
        """Print the text once the stream takes it."""
        _await_reader(stream)
        shown = printable(text)
        try:
            print(shown, file=stream, flush=True)
        except UnicodeEncodeError:
            from gpu_util_callback.report.screen import Pen

            plain = Pen(width=110, color=False, unicode=False).finish(shown.split("\n"))
            print(plain, end="", file=stream, flush=True)

    _printer.put(write)


def verdict(run: RunReport, interrupted: bool = False, program: str | None = None) -> None:
    """Print two lines about where the time of a run went.

    Nothing is printed for a fit of seconds without a finding, where an earlier one has printed its
    verdict or the user ended it; nor for one that is summed up with other short fits.

    Args:
        run: its report.
        interrupted: the fit did not reach its end.
        program: as for `two_lines`.
    """
    try:
        from gpu_util_callback.report.screen import two_lines

        news, text = _news(run)
        if text != run["verdict"]:  # what concerns all fits has been said, or will be
            of_this_fit = [finding for finding in run["findings"] if not finding.get("of_s")]
            run = {**run, "verdict": text, "findings": of_this_fit}
        short = (run["wall_s"] or 0) < _SHORT_S
        if short and run["fits"] == 1 and _is_summed_up(run, news, interrupted):  # one of many short fits
            return
        # an earlier fit ended with the same
        if run["headline"] and not (news or interrupted) and _is_said(run, run["headline"]):
            return
        short = short and not run["findings"] and not run["spans"]
        if not (short and not news and (interrupted or run["fit_index"])):
            _print(("\n" if interrupted else "") + two_lines(run, program), getattr(sys, _results_to[0]))
    except Exception as error:
        debug("no verdict", error)


def _is_summed_up(run: RunReport, news: bool, interrupted: bool) -> bool:
    """Add a short fit to the others; return whether a line about all of them stands in place of its verdict.

    Args:
        news: its verdict concerns all fits and is due.
    """
    _short_fits.add(run)
    if _short_fits.count < _MANY or news:
        return False
    if _short_fits.count >= _AGAIN * _short_fits.said and not interrupted:
        _print(_short_fits.lines(), getattr(sys, _results_to[0]))
    return True


class _ShortFits:
    """The short fits of this process, each with a recording of its own: what they cost together."""

    def __init__(self) -> None:
        self.count = 0
        self.said = 0  # fits at the last time
        self._wall_s = self._between_s = 0.0
        self._time_s: Counter[str] = Counter()  # of the host account
        self._steps = 0
        self._models: set[object] = set()  # their names: Keras numbers those that are built anew

    def add(self, run: RunReport) -> None:
        """Add a fit that has just ended."""
        self.count += 1
        self._wall_s += run["wall_s"] or 0.0
        self._steps += run["steps"]
        self._time_s.update(run["time_s"])
        self._models.add((run["model"] or {}).get("name"))
        self._between_s = sum(run["process"]["between_s"].values()) if run["process"] else 0.0

    def lines(self) -> str:
        """Return two lines: what the fits cost together, and a way to fewer of them if begin and end cost much."""
        from gpu_util_callback.words import HOST_TIME, counted, duration

        self.said = self.count
        parts = sorted(self._time_s.items(), key=lambda part: -part[1])
        costs = [f"{duration(spent)} {HOST_TIME[part].title}" for part, spent in parts if spent >= 0.05 * self._wall_s]
        each_s = (self._wall_s - self._time_s["step"] - self._time_s["validation"]) / self.count
        between = f", and {duration(self._between_s)} passed between them" if self._between_s else ""
        text = (
            f"gpu-util: {self.count:,} short fits took {duration(self._wall_s)} together{between}: {', '.join(costs)}."
            f"\n          Each has {counted(round(self._steps / self.count), 'step')} and spends {duration(each_s)} on "
            "what a fit begins and ends with."
        )
        if 1e-9 + each_s * self.count < 0.2 * self._wall_s:
            return text
        if len(self._models) > 1:
            return f"{text} Each fits a model of its own: can one serve all, with its weights set back before each?"
        return f"{text} Do they go on with one model? Then one fit of a generator over all parts does that once."


# (title, remedy) of a verdict -> fits of this process that ended with it, said once, and counted.
_same: Counter[tuple[str, str]] = Counter()
_COUNTED = frozenset(2 * 4**times for times in range(20))  # numbers of fits at which the count is said


def _is_said(run: RunReport, lead: Headline) -> bool:
    """Count a fit's verdict, and return whether an earlier fit ended with it."""
    first = next(finding for finding in [*run["findings"], *run["spans"]] if finding["id"] == lead["ids"][0])
    fix_key = lead["title"], re.sub(r"[\d.,]+", "", first["advice"]["code"])
    _same[fix_key] += 1
    if _same[fix_key] in _COUNTED:
        _say_count(fix_key[0], _same[fix_key] - 1)
    return _same[fix_key] > 1


def _say_count(title: str, more: int) -> None:
    _print(f"gpu-util: the same in {more:,} more fit{'s' * (more > 1)}: {title}.", getattr(sys, _results_to[0]))


def _count_at_exit() -> None:
    """Print sums of short fits, and how many fits ended alike."""
    if _short_fits.count >= _MANY and _short_fits.count > _short_fits.said:
        _print(_short_fits.lines(), getattr(sys, _results_to[0]))
    for (title, _), fits in _same.items():
        if fits > 1 and fits not in _COUNTED:
            _say_count(title, fits - 1)
    drain()


_short_fits = _ShortFits()
atexit.register(_count_at_exit)


def debug(subject: str, error: BaseException) -> None:
    """Log an error with its traceback, where debugging is on."""
    if log.isEnabledFor(logging.DEBUG):
        _printer.put(lambda: log.debug("gpu_util_callback: %s: %s", subject, error, exc_info=error))


def _news(run: RunReport) -> tuple[bool, str]:
    """Return whether the verdict is about all fits of the script and due now, and which part of it is printed.

    A fit that has a recording of its own keeps only what concerns itself otherwise.
    """
    from gpu_util_callback.diagnosis.verdict import IN_FITS, IN_THIS

    verdict_text = run["verdict"]
    _, about_fits, remainder = verdict_text.partition(f" {IN_THIS}: ")
    if not about_fits:
        _, about_fits, remainder = verdict_text.partition(f" {IN_FITS}: ")
    if not about_fits:
        return False, verdict_text  # the verdict is about this fit alone
    script = run["process"]
    assert script is not None  # the verdict is about it
    fits = script["fits"]
    # first said, or of four times as many fits
    if fits >= _AGAIN * _fits_at_last_verdict.get(about_fits, 0) and (script["wall_s"] or 0) >= 2 * _SHORT_S:
        _fits_at_last_verdict[about_fits] = fits
        return True, verdict_text
    return False, remainder if run["fits"] == 1 else verdict_text


def reason_of(error: BaseException) -> str:
    """Return the reason in one line."""
    if isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno):
        return error.strerror
    return error_text(error)
