"""Opens trace files: finds them in folders, tells their format by content, reads them."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces.model import Trace

__all__ = ["find_traces", "read_trace"]

# Files are read whole; a compressed one may not unfold to more than this.
MAX_BYTES = 4 << 30

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file, or the newest session in a folder (one file per host).

    Args:
        path: a `*.xplane.pb` file, or a folder with some in it or below.

    Returns: the trace in the event model of `gpu_util_callback.traces.model`.

    Raises: UnusableInput, with one line that says what is wrong and what to do.
    """
    files, skipped = find_traces(path)
    from gpu_util_callback.traces.xplane import read_xplane

    trace = read_xplane([(str(file), _load(file)) for file in files])
    if skipped:
        trace.problems.append(
            f"{skipped} older sessions in this folder were not read; name one to see it"
        )
    return trace


def find_traces(path: str | os.PathLike[str]) -> tuple[list[Path], int]:
    """The trace files that `path` means: itself, or those of the newest session below it.

    Returns: (files, number of older sessions left aside).
    """
    path = Path(path)
    if path.is_file():
        return [path], 0
    if not path.exists():
        raise UnusableInput(f"{path}: no such file or folder")
    found = [file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file()]
    if not found:
        raise UnusableInput(
            f"{path}: no trace in this folder; looked for *{_SUFFIXES[0]} in it and below"
        )
    sessions: dict[Path, list[Path]] = {}
    for file in found:
        sessions.setdefault(file.parent, []).append(file)
    newest = max(sessions, key=lambda s: max(f.stat().st_mtime for f in sessions[s]))
    return sorted(sessions[newest]), len(sessions) - 1


def _load(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UnusableInput(f"{path}: larger than {MAX_BYTES >> 30} GB; profile fewer steps")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as unpacked:
                data = unpacked.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise UnusableInput(f"{path}: unpacks to more than {MAX_BYTES >> 30} GB")
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableInput(f"{path}: cannot be read ({reason})") from None
    if not data:
        raise UnusableInput(f"{path}: empty; the profiler may have been killed while writing")
    return data
