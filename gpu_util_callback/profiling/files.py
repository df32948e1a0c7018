"""Puts a profiler window's file where TensorBoard's Profile tab finds it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from gpu_util_callback.recording.storage import is_remote, storage_for

__all__ = ["keep", "publish"]


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
    if is_remote(log_dir):
        return _publish_remote(file, log_dir, name, target_name, bool(redact))
    home = Path(storage_for(log_dir)[1]) / "plugins" / "profile"
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
    name = f"{name}_{os.getpid()}"  # object stores have no exclusive folders
    data = file.read_bytes()
    data = _without_host_names(data) if strip else data
    _put(data, log_dir, f"plugins/profile/{name}/{target_name}")
    return name


def keep(file: Path, log_dir: str) -> None:
    """Copy a `<host>.pt.trace.json.gz` to where PyTorch's own tools put such files.

    Args:
        log_dir: the run's folder, or an fsspec URL.

    Raises:
        OSError: it cannot be written.
    """
    host, _, kind = file.name.partition(".pt.")
    name = f"{host}_{os.getpid()}.{time.time_ns()}.pt.{kind}"
    if is_remote(log_dir):
        _put(file.read_bytes(), log_dir, name)
        return
    home = Path(storage_for(log_dir)[1])
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f"{name}.part"
    try:
        shutil.copyfile(file, partial)
        partial.replace(home / name)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _put(data: bytes, log_dir: str, name: str) -> None:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(log_dir)
    target = f"{root.rstrip('/')}/{name}"
    try:
        filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(target, data)
    except OSError:
        raise
    except Exception as error:  # each store has its own
        raise OSError(f"{type(error).__name__}: {error}") from error


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
