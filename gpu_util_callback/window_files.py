"""What becomes of a profiler window's file: shown by the Profile tab, and read into rows."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

__all__ = ["AllocatorCurve", "ReadFailed", "WindowRows", "cure_for", "publish", "read_in_process"]


class ReadFailed(Exception):
    """A window's file could not be read; the message says why in one line."""


@dataclass
class AllocatorCurve:
    """What one of the framework's allocators held over a window.

    Args:
        name: e.g. "GPU_0_bfc".
        gpu: the framework's ordinal; -1 = memory of the host.
        time_ns: int64[n].
        allocated_bytes: int64[n].
    """

    name: str
    gpu: int
    time_ns: np.ndarray
    allocated_bytes: np.ndarray


@dataclass
class WindowRows:
    """A window's rows for the recording; columns as in the recording's schema, times of the wall
    clock.

    Args:
        tables: `traced_steps` and `kernels`.
        events: in the trace.
        device_events: of them, on GPUs.
        problems: lines of the profiler, such as dropped events.
        cpu_s: processor time that reading took.
        allocators: their curves.
    """

    tables: dict[str, dict[str, np.ndarray]]
    events: int
    device_events: int
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    allocators: list[AllocatorCurve] = field(default_factory=list)


def publish(file: Path, log_dir: str, name: str, redact: Callable[[str], str] | None = None) -> str:
    """Copy a trace to where TensorBoard's Profile tab looks for it.

    Args:
        file: `<host>.xplane.pb`.
        log_dir: the run's folder, or an fsspec URL.
        name: of the profile; another window of that name keeps it, and this one gets a suffix.
        redact: replaces a host name.

    Returns: the profile's name, which the Profile tab lists.

    Raises:
        OSError: it cannot be written.
    """
    host = file.name.removesuffix(".xplane.pb")
    target_name = f"{redact(host) if redact else host}.xplane.pb"
    if "://" in log_dir and not log_dir.startswith("file://"):
        return _publish_remote(file, log_dir, name, target_name, bool(redact))
    home = Path(log_dir.removeprefix("file://")) / "plugins" / "profile"
    home.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        folder = home / (name if attempt == 1 else f"{name}_{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        break
    else:
        raise FileExistsError(f"{home / name} and 999 more exist")
    # A half-copied file would be shown as damaged: it gets its name when it is whole.
    partial = folder / f"{target_name}.part"
    try:
        if redact:
            partial.write_bytes(_without_host_names(file.read_bytes()))
        else:
            shutil.copyfile(file, partial)
        partial.replace(folder / target_name)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
            folder.rmdir()
        raise
    return folder.name


def _publish_remote(file: Path, log_dir: str, name: str, target_name: str, strip: bool) -> str:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(log_dir)
    name = f"{name}_{os.getpid()}"  # object stores have no exclusive folders
    data = file.read_bytes()
    target = f"{root.rstrip('/')}/plugins/profile/{name}/{target_name}"
    try:
        filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(target, _without_host_names(data) if strip else data)
    except OSError:
        raise
    except Exception as error:  # each store has its own
        raise OSError(f"{type(error).__name__}: {error}") from error
    return name


def _without_host_names(data: bytes) -> bytes:
    """An XSpace without field 4, `hostnames`."""
    from gpu_util_callback.traces import wire

    kept = []
    at = 0
    for number, _, _, end in wire.fields(data, 0, len(data)):
        if number != 4:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def read_in_process(
    file: Path, timeout_s: float = 600, started: Callable[[subprocess.Popen], None] | None = None
) -> WindowRows:
    """Read a trace in a process of the lowest priority.

    Args:
        file: the `*.xplane.pb`; a file beside it takes the answer.
        timeout_s: after which the process is killed.
        started: gets the process, so that somebody else can end it.

    Raises:
        ReadFailed.
    """
    from gpu_util_callback.traces.window_job import load

    out = file.with_name("rows.npz")
    command = [sys.executable, "-m", "gpu_util_callback.traces.window_job", str(file), str(out)]
    if not sys.executable:
        raise ReadFailed("this Python cannot start a second one")
    began = time.monotonic()
    try:
        # A session of its own: Ctrl-C in the terminal is for the training, not for this process.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ReadFailed(f"no process to read the trace in: {error}") from error
    with process:
        if started is not None:
            started(process)
        try:
            _, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ReadFailed(f"reading the trace took more than {timeout_s:.0f} s") from None
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        said = lines[-1][:300] if lines else f"its process ended with {process.returncode}"
        raise ReadFailed(said)
    try:
        tables, about = load(out)
    except (OSError, ValueError, KeyError) as error:
        raise ReadFailed(f"the rows of the trace are damaged: {error}") from error
    cpu_s = about.get("cpu_s") or time.monotonic() - began
    curves = [
        AllocatorCurve(known["name"], known["gpu"], **tables.pop(f"allocator{number}"))
        for number, known in enumerate(about["allocators"])
    ]
    return WindowRows(
        tables, about["events"], about["device_events"], list(about["problems"]), cpu_s, curves
    )


def _environment() -> dict[str, str]:
    """This process's own, with its module path, and one thread for numpy's libraries."""
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
    (
        ("dropped", "lost"),
        "profile less at a time: trace=TraceSchedule(steps=1), or a lower max_events",
    ),
)


def cure_for(problem: str) -> str:
    """What to do about a line that a profiler left in its trace."""
    lowered = problem.lower()
    for words, cure in _CURES:
        if any(word in lowered for word in words):
            return cure
    return "run `gpu-util doctor`, which checks the profiler's libraries and rights"
