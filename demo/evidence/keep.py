"""Keeps a run as evidence: its recording, its event file, and its windows cut to a few steps."""

from __future__ import annotations

import shutil
from pathlib import Path

from evidence.trim import trim_xspace

WINDOW_BYTES = 120_000
_SUFFIXES = (".json", ".npz")


def keep(log_dir: Path, target: Path, window_bytes: int = WINDOW_BYTES) -> int:
    """Copy a log directory to `target` (emptied first); returns the bytes it takes there.

    Recordings are copied, XPlane files are cut until they fit `window_bytes`. Of event files the
    marker is kept, which shows TensorBoard that there is a recording, and the scalars are not.
    """
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(path for path in log_dir.rglob("*") if path.is_file()):
        goal = target / file.relative_to(log_dir)
        if file.name.endswith(".xplane.pb"):
            data = _fitting(file.read_bytes(), window_bytes)
        elif ".tfevents." in file.name:
            _mark(goal.parent)
            continue
        elif file.name.endswith(_SUFFIXES):
            data = file.read_bytes()
        else:
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        goal.write_bytes(data)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _mark(folder: Path) -> None:
    from gpu_util_callback.recording.event_files import ScalarWriter

    events = ScalarWriter(str(folder), redact=True)
    events.marker()
    events.close()


def _fitting(data: bytes, limit: int) -> bytes:
    """The window with as many whole steps as fit, at least one."""
    steps = 8
    cut = trim_xspace(data, steps)
    while len(cut) > limit and steps > 1:
        steps -= 1
        cut = trim_xspace(data, steps)
    return cut
