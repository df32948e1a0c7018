"""Reading of profiler windows by a process of the lowest priority."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpu_util_callback.redaction import shortened


class ReadFailed(Exception):
    """A window's file could not be read; the message gives the reason in one line."""


@dataclass
class WindowRows:
    """Rows of a window for the recording, by its schema and the wall clock.

    Args:
        tables: `traced_steps`, `kernels` and `step_kernels`.
        events: in the trace.
        device_events: of them, on GPUs.
        problems: lines of the profiler, such as dropped events.
        cpu_s: processor time that reading took.
    """

    tables: dict[str, dict[str, np.ndarray]]
    events: int
    device_events: int
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


# The priority is set before the imports, which are most of the work: `python -m` would be too late.
_CHILD = """
import os, sys
if hasattr(os, "nice"):
    os.nice(19)
from gpu_util_callback.profiling.reading_process import main
main(*sys.argv[1:])
"""


class WindowReader:
    """Reader of a fit's windows, one by one, each in a process of its own of the lowest priority."""

    def __init__(self, timeout_s: float = 600.0):
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # held while a process is started or ended
        self._process: subprocess.Popen | None = None  # the latest
        self._given_up = False

    def read(self, file: Path) -> WindowRows:
        """Read a trace, and wait for the result; a window asks once the one before it is read.

        Args:
            file: the `*.xplane.pb`; the answer goes into a file next to it.

        Raises:
            ReadFailed.
        """
        out = file.with_name("rows.pickle")
        with self._lock:
            if self._given_up:
                raise ReadFailed("no time is left for it")
            process = self._process = _start_reader(file, out)
        try:
            _, message = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise ReadFailed(f"reading it took more than {self._timeout_s:g} s") from None
        if process.returncode:
            last_line = message.decode(errors="replace").strip().rpartition("\n")[2]
            raise ReadFailed(shortened(last_line) or f"the process that reads it ended with {process.returncode}")
        return pickle.loads(out.read_bytes())  # of our own process, in a folder of this user alone

    def give_up(self) -> None:
        """End the current reading, and read no more. Callable on any thread."""
        with self._lock:
            self._given_up = True
            if self._process is not None:
                self._process.kill()


def _start_reader(file: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start the process that reads a window's `file` and leaves the rows in `out`. Raises: ReadFailed."""
    if not sys.executable:
        raise ReadFailed("this Python cannot start another process")
    try:
        # A session of its own: Ctrl-C in the terminal is for the training, not for this process.
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(file), str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_reader_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ReadFailed(f"there is no process to read it: {error}") from error


def _reader_environment() -> dict[str, str]:
    """Return this process's environment, with its module path and one thread for numpy."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[variable] = "1"
    return environment


_PRIVILEGE = (
    "let users read GPU performance counters: put `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` into /etc/modprobe.d/ and reboot (in a container: "
    "--cap-add=SYS_ADMIN)"
)
_CURES = (
    (("privilege", "permission"), _PRIVILEGE),
    (
        ("multiple_subscribers", "multiple subscribers", "already subscribed"),
        "end the other CUDA profiler (nsys, ncu, a debugger) attached to this process",
    ),
    (
        ("libcupti", "cupti could not be loaded", "failed to load cupti"),
        "install CUPTI where TensorFlow finds it: pip install 'tensorflow[and-cuda]', or add "
        "the CUDA toolkit's extras/CUPTI/lib64 to LD_LIBRARY_PATH",
    ),
    (("dropped", "lost"), "profile less at a time: trace=TraceSchedule(steps=1)"),
)


def cure_for(problem: str) -> str:
    """Return what to do about a line that a profiler left in its trace."""
    lowered = problem.lower()
    for words, cure in _CURES:
        if any(word in lowered for word in words):
            return cure
    return "run `gpu-util doctor`, which checks the profiler's libraries and rights"
