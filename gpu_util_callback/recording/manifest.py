"""`manifest.json`: the facts of a recording, and whether it still grows."""

import json
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.cgroup import kill_count, text_of
from gpu_util_callback.processes import DEAD, stat_of
from gpu_util_callback.recording.manifest_facts import MOST_COUNT, Facts, checked, encodable
from gpu_util_callback.recording.schema import FORMAT_MAJOR
from gpu_util_callback.redaction import cleaned, without_secrets

MAX_BYTES = 32 << 20
# The maximum age of a writer's last heartbeat; more for one that flushes rarely.
PATIENCE_S = 30.0


class ManifestError(ValueError):
    """The manifest cannot be read; the message gives the reason in one line."""


class UnknownFormat(ManifestError):
    """A version of this package with another format wrote the recording."""


def dumps(manifest: dict[str, Any]) -> bytes:
    """Return facts as strict JSON: numpy's numbers as numbers, unknown values (NaN) as null.

    No secret of a URL is in it (see `redaction`).
    """
    return strict_json(plain(manifest)).encode()


def strict_json(value: Any) -> str:
    """Return a plain value as JSON without secrets of URLs.

    Raises: TypeError, ValueError for a value that is not plain.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if without_secrets(text) != text:
        text = json.dumps(cleaned(value), separators=(",", ":"), allow_nan=False)
    return text


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numpy's numbers as Python's, None for what is not finite, else text."""
    if isinstance(value, dict):  # the usual ones first: this runs for every fact at every flush
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [plain(item) for item in value]
    return str(value)


def parse(data: bytes) -> tuple[Facts, list[str]]:
    """Return the manifest's facts, and the parts that had to be left out.

    Raises: UnknownFormat, ManifestError.
    """
    return checked(unchecked(data))


def unchecked(data: bytes) -> dict[str, Any]:
    """Return a manifest of our format as it is: its facts may be anything. Raises: UnknownFormat, ManifestError."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"manifest.json is unreadable ({str(error)[:120]})") from error
    if not isinstance(manifest, dict):
        raise ManifestError("manifest.json is not a JSON object")
    version = manifest.get("format")
    if not (isinstance(version, list) and version and type(version[0]) is int):
        raise ManifestError("manifest.json names no format")
    if version[0] != FORMAT_MAJOR:
        writer = manifest.get("writer")
        writer = encodable(writer)[:40] if isinstance(writer, str) else "(unknown)"
        shown = version[0] if version[0] < MOST_COUNT else "(unknown)"
        newer = version[0] > FORMAT_MAJOR
        remedy = "upgrade gpu-util-callback" if newer else "only the older version reads it; record the training again"
        raise UnknownFormat(
            f"written by gpu-util-callback {writer} in format {shown}, and this version reads "
            f"format {FORMAT_MAJOR}: {remedy}"
        )
    return manifest


def safe_name(text: str) -> str:
    """Return `text` as one part of a folder's name, the same on every file system."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("._")[:40] or "unknown"


def folder_stamp(start_ns: int) -> str:
    """Return the beginning of a folder's name: its start in UTC, to the millisecond."""
    started = datetime.fromtimestamp(start_ns / 1e9, UTC)
    return started.strftime("%Y%m%dT%H%M%S.") + f"{started.microsecond // 1000:03d}Z"


def named_start(folder: str) -> int:
    """Return the start in a folder's name, in ns since the epoch; 0 without one."""
    try:
        stamp = datetime.strptime(folder.partition("-")[0], "%Y%m%dT%H%M%S.%fZ")
    except ValueError:
        return 0
    return round(stamp.replace(tzinfo=UTC).timestamp() * 1e3) * 1_000_000


# --- is the writer still there? -------------------------------------------------------------------


def process_facts() -> dict[str, Any]:
    """Return what identifies this process on this boot of this host, as far as the OS says."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "process_started": _process_started(os.getpid()),
    }


def killed_since(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return how many processes were killed for memory since a recording's last flush.

    Returns:
        By place, "container" and "machine", without a place where no process was killed. Empty if
        unknown: on another machine, or after a restart of this one.
    """
    memory = manifest.get("memory") or {}
    boot, counted = manifest.get("boot_id"), memory.get("oom_kills")
    if not boot or boot != _boot_id() or not isinstance(counted, Mapping):
        return {}
    folder, inode = str(memory.get("control_group") or ""), int(memory.get("group_inode") or 0)
    now = kill_count(folder=folder, inode=inode).kills
    killed = {name: now[name] - int(counted[name]) for name in counted if name in now}
    return {name: kills for name, kills in killed.items() if kills > 0}


def _boot_id() -> str | None:
    """Return what identifies this start of the machine; None where the system does not say."""
    return text_of(Path("/proc/sys/kernel/random/boot_id")).strip() or None


def _pid_namespace() -> str | None:
    """Return this process's namespace of process ids; None where the system does not say."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _process_started(pid: int) -> int | None:
    """Return a process's start in ticks since boot: distinguishes a pid from its reuse."""
    stat = stat_of(pid)
    return int(stat[19]) if len(stat) > 19 and stat[19].isdigit() else None


def writer_state(manifest: Facts) -> str | None:
    """Return the letter of the writer's state in /proc, "" if it is dead; None where that cannot be known.

    It is known only on the host, boot and in the namespace where the recording was written.
    """
    pid, boot = manifest.get("pid"), manifest.get("boot_id")
    if pid is None or not boot or boot != _boot_id():
        return None
    if manifest.get("host") != socket.gethostname():
        return None  # another container: its pids are not ours
    if manifest.get("pid_namespace") != _pid_namespace():
        return None
    started = _process_started(pid)
    # no such process, or a later one with its id
    if started is None or manifest.get("process_started") not in (None, started):
        return ""
    return (stat_of(pid)[:1] or [b""])[0].decode().strip(DEAD)


def lost(manifest: Facts, age_s: float | None = None, now_s: float | None = None) -> bool:
    """Return whether a recording with status "live" has no writer any more.

    Args:
        manifest: as parsed.
        age_s: age of the file by a clock nearer to the writer's (the file system's, or the time
            since a reader saw it change); the smaller age counts, since two machines' clocks may
            differ. None = not known.
        now_s: the wall clock, for tests.
    """
    if writer_state(manifest) == "":
        return True
    heartbeat = manifest.get("heartbeat_wall_ns")
    flush_s = manifest.get("flush_s")
    patience = max(PATIENCE_S, 5 * (flush_s or 0))  # seconds
    ages = [] if age_s is None else [age_s]
    if heartbeat is not None:
        age = (time.time() if now_s is None else now_s) - heartbeat / 1e9
        if age > -patience or not ages:  # a heartbeat from the future gives no information
            ages.append(age)
    return not ages or min(ages) > patience
