"""Puts a profiler window's file where TensorBoard's Profile tab finds it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["publish"]


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
