"""Reading of profiler windows by a process of the lowest priority."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpu_util_callback.recording.segments import SampleBlock
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
        allocators: the memory that the framework's allocators held of each GPU.
    """

    tables: dict[str, dict[str, np.ndarray]]
    events: int
    device_events: int
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    allocators: list[SampleBlock] = field(default_factory=list)


# The priority is set before the imports, which are most of the work: `python -m` would be too late.
_CHILD = """
import json, os, sys
if hasattr(os, "nice"):
    os.nice(19)
try:
    from gpu_util_callback.profiling.reading_process import main
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit(1)
sys.exit(main())
"""


class WindowReader:
    """Reader of a fit's windows, one by one, in a process that it starts for the first.

    The process ends with `close`, and by itself when this one ends, however that happens.
    """

    def __init__(self, timeout_s: float = 600.0):
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._given_up = False

    def read(self, file: Path) -> WindowRows:
        """Read a trace and wait for the result; several threads may call.

        Args:
            file: the `*.xplane.pb`; the answer goes into a file next to it.

        Raises:
            ReadFailed.
        """
        out = file.with_name("rows.pickle")
        with self._lock:
            if self._given_up:
                raise ReadFailed("no time is left for it")
            answer = self._ask({"path": str(file), "out": str(out)})
        if answer["error"]:
            raise ReadFailed(shortened(str(answer["error"])))
        return pickle.loads(out.read_bytes())  # of our own process, in a folder of this user alone

    def give_up(self) -> None:
        """End the process, and with it the current reading. Callable on any thread."""
        self._given_up = True
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def close(self) -> None:
        """End the process once it has finished its work."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _end(process)

    def _ask(self, job: dict) -> dict:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = _start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it has died meanwhile
            line = b""
        finally:
            timer.cancel()
        if late.is_set():
            raise ReadFailed(f"reading it took more than {self._timeout_s:g} s")
        if not line:
            code = process.wait()
            self._process = None
            _end(process)
            raise ReadFailed(f"the process that reads it ended with {code}")
        return json.loads(line)


def allocator_curve(gpu: int, time_ns: np.ndarray, allocated_bytes: np.ndarray) -> SampleBlock:
    """Return the memory that an allocator held of a GPU, as samples for the recording."""
    values = allocated_bytes.astype(np.float64).reshape(-1, 1)
    # The allocators that are sampled are "gpu<i>/allocator".
    return SampleBlock(f"gpu{gpu}/allocator_traced", ("allocated_bytes",), time_ns, values)


def _start() -> subprocess.Popen:
    if not sys.executable:
        raise ReadFailed("this Python cannot start another process")
    try:
        # A session of its own: Ctrl-C in the terminal is for the training, not for this process.
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ReadFailed(f"there is no process to read it: {error}") from error


def _end(process: subprocess.Popen) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
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
    (("dropped", "lost"), "profile less at a time: trace=TraceSchedule(steps=1), or a lower max_events"),
)


def cure_for(problem: str) -> str:
    """Return what to do about a line that a profiler left in its trace."""
    lowered = problem.lower()
    for words, cure in _CURES:
        if any(word in lowered for word in words):
            return cure
    return "run `gpu-util doctor`, which checks the profiler's libraries and rights"
