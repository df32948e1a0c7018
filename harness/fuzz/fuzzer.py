"""Feeds inputs to a check in child processes, so that a hang, a crash or a blow-up ends one input.

A `Format` makes inputs and judges what the project does with each. Inputs are numbered and made
from the seed and their number alone: any of them can be made again. A child process works through
a run of numbers; the kernel ends it when one input takes too much CPU time, and the next child goes
on behind that input.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

# Address space beyond what memory an input may take: what asks for more gets a MemoryError.
_HEADROOM = 2 << 30
_WALL_FACTOR = 20  # of the CPU time allowed, for what sleeps or waits
_PER_CHILD = 2_000  # inputs; a new child has no memory of the old one


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Format:
    """A kind of input.

    Attributes:
        name: for the command line and the corpus folder.
        make: an input from a source of random numbers.
        check: what the project makes of an input, as a word to count ("read", "refused"); raises
            whatever the project raises, and AssertionError for an answer that makes no sense. The
            folder is empty and is emptied after each input.
        judge: the same for one given input, where `check` does not do all for each.
        prepare: imports and seeds, once, before the first child starts.
        seconds: CPU time that an input may take.
        memory: bytes that an input may take, on top of `memory_factor` times its size.
    """

    name: str
    make: Callable[[Random], bytes]
    check: Callable[[bytes, Path], str]
    judge: Callable[[bytes, Path], str] | None = None
    prepare: Callable[[], None] = _nothing
    seconds: float = 10.0
    memory: int = 128 << 20
    memory_factor: int = 200


@dataclass(frozen=True)
class Failure:
    """An input whose check failed.

    Attributes:
        number: of the input, -1 for one that was given.
        kind: "time", "memory", "died", "raised", "stderr".
        where: what failed, alike for inputs that fail for the same reason.
        text: the traceback, or what was printed.
    """

    format: str
    number: int
    kind: str
    where: str
    text: str
    data: bytes

    @property
    def signature(self) -> str:
        return f"{self.kind} {self.where}"


@dataclass
class Report:
    """Outcomes of a run: how many inputs had each, and one failure (the smallest) of each kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def inputs(self) -> int:
        return self.outcomes.total()

    def add_failure(self, failure: Failure) -> None:
        known = self.failures.get(failure.signature)
        self.failed[failure.signature] += 1
        self.outcomes["failed"] += 1
        if known is None or len(failure.data) < len(known.data):
            self.failures[failure.signature] = failure


def made(format: Format, seed: int, number: int) -> bytes:
    """The input of that number."""
    return format.make(Random(f"{format.name} {seed} {number}"))


def run(format: Format, seed: int, numbers: range, until: float | None = None, report: Report | None = None) -> Report:
    """Check the inputs of some numbers, one after the other.

    Args:
        until: monotonic time at which to stop early.
    """
    format.prepare()
    report = Report() if report is None else report
    at = numbers.start
    while at < numbers.stop and (until is None or time.monotonic() < until):
        stop = min(numbers.stop, at + _PER_CHILD)
        inputs = ((number, made(format, seed, number)) for number in range(at, stop))
        done, failure = _in_child(format, inputs, until, report.outcomes)
        at += done
        if failure is not None:
            report.add_failure(Failure(**{**failure, "data": made(format, seed, at)}, number=at))
            at += 1
        elif not done:  # out of time
            break
    return report


def warm_up(format: Format) -> None:
    """Check one input in this process, so that no child imports what a check imports late."""
    format.prepare()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, contextlib.suppress(Exception):
        (format.judge or format.check)(made(format, 1, 0), Path(folder))


def check_one(format: Format, data: bytes) -> tuple[str, Failure | None]:
    """The outcome of one given input."""
    format.prepare()
    format = replace(format, check=format.judge or format.check)
    outcomes: Counter[str] = Counter()
    _, failure = _in_child(format, [(-1, data)], None, outcomes)
    if failure is not None:
        return "failed", Failure(**failure, number=-1, data=data)
    return next(iter(outcomes)), None


def _in_child(
    format: Format, inputs: Iterable[tuple[int, bytes]], until: float | None, outcomes: Counter[str]
) -> tuple[int, dict | None]:
    """Check inputs in a child until one fails: (how many passed, the failure of the next)."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=base) as folder:
        log, printed = Path(folder) / "log", Path(folder) / "printed"
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            status = 70
            try:
                status = _work(format, inputs, until, Path(folder) / "scratch", log, printed)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        lines = log.read_text().split("\n") if log.exists() else [""]
        text = printed.read_text(errors="replace")[-4000:] if printed.exists() else ""
    # Each line is an outcome, or the failure that ended the child.
    words = [line for line in lines[:-1] if not line.startswith("{")]
    outcomes.update(words)
    found = [json.loads(line) for line in lines[:-1] if line.startswith("{")]
    if found:
        return len(words), {"format": format.name, **found[0]}
    if status == 0:
        return len(words), None
    kind = "died"
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        kind = "time" if ended_by in (signal.SIGPROF, signal.SIGALRM) else "died"
        where = signal.Signals(ended_by).name
    else:
        where = f"exit {os.WEXITSTATUS(status)}"
    return len(words), {"format": format.name, "kind": kind, "where": where, "text": text}


def _work(
    format: Format, inputs: Iterable[tuple[int, bytes]], until: float | None, scratch: Path, log: Path, printed: Path
) -> int:
    warnings.simplefilter("error")
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    errors = os.open(printed, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    scratch.mkdir()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for _, data in _until(inputs, until):
        allowed = format.memory + format.memory_factor * len(data)
        most = size + allowed + _HEADROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        before = _peak()
        signal.setitimer(signal.ITIMER_PROF, format.seconds)
        signal.setitimer(signal.ITIMER_REAL, format.seconds * _WALL_FACTOR)
        failure = None
        try:
            line = format.check(data, scratch)
        except BaseException as error:
            failure = _raised(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        grown = _peak() - before
        if failure is None and grown > allowed:
            text = f"{grown >> 20} MB for {len(data):,} bytes"
            failure = {"kind": "memory", "where": "peak", "text": text}
        if failure is None and os.fstat(errors).st_size:
            text = os.pread(errors, 4000, 0).decode("utf-8", "replace")
            failure = {"kind": "stderr", "where": text[:60], "text": text}
        if failure is not None:
            os.write(out, json.dumps(failure).encode() + b"\n")
            return 0
        os.write(out, line.encode() + b"\n")
        for entry in scratch.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return 0


def _until(inputs: Iterable, until: float | None) -> Iterator:
    for one in inputs:
        if until is not None and time.monotonic() > until:
            return
        yield one


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _raised(error: BaseException) -> dict:
    kind = "memory" if isinstance(error, MemoryError) else "raised"
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost line of the project: libraries differ, and one mistake shows in many of them.
    own = [f for f in frames if "gpu_util_callback" in f.filename or "plugin" in f.filename]
    at = (own or frames)[-1]
    # Of an assertion of a check its words, without the numbers of this one input.
    said = str(error).split("\n")[0] if isinstance(error, AssertionError) else ""
    detail = re.sub(r"[-\d.e+]*\d", "#", said)[:60]
    where = f"{type(error).__name__} {Path(at.filename).name}:{at.name} {detail}".strip()
    return {"kind": kind, "where": where, "text": "".join(traceback.format_exception(error))[-8000:]}


def minimise(format: Format, failure: Failure, seconds: float = 60) -> Failure:
    """A smaller input that fails alike, found by leaving out ever shorter stretches."""
    best = failure
    until = time.monotonic() + seconds
    length = max(1, len(best.data) // 2)
    while length and time.monotonic() < until:
        at, shorter = 0, False
        while at < len(best.data) and time.monotonic() < until:
            less = best.data[:at] + best.data[at + length :]
            _, found = check_one(format, less)
            if found is not None and found.signature == failure.signature:
                best, shorter = found, True
            else:
                at += length
        length = length if shorter and length > 1 else length // 2
    return best


def save(failure: Failure, folder: Path) -> Path:
    """Keep a failing input and what was said of it."""
    key = hashlib.sha256(failure.signature.encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.format}-{failure.kind}-{key}"
    path.write_bytes(failure.data)
    note = f"{failure.signature}\ninput {failure.number}\n\n{failure.text}\n"
    path.with_suffix(".txt").write_text(note)
    return path
