"""The kernel's account of this process: its container's limits and memory, and what was killed."""

import os
from pathlib import Path
from typing import NamedTuple


def control_groups(root: Path) -> list[Path]:
    """Return the folders whose limits apply to this process: its groups and their ancestors.

    One tree in version 2 of control groups, one for each controller in version 1. In a container
    the paths may be the host's, which do not exist: the mount is the container's own group.

    Args:
        root: of the file system; another one in tests.
    """
    mount = root / "sys/fs/cgroup"
    folders = dict.fromkeys([mount, mount / "memory", mount / "cpu", mount / "cpu,cpuacct"])
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        base, group_path = mount / controllers, Path(path.lstrip("/"))
        folders.update(dict.fromkeys(base / part for part in (group_path, *group_path.parents)))
    return list(folders)


def cpu_quota(group: Path) -> float | None:
    """Return the cores' worth of time that a group may use; None = no limit."""
    quota = text_of(group / "cpu.max").split()  # version 2
    if len(quota) != 2:
        quota = [text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    has_limit = all(part.isdigit() for part in quota)  # "max" and "-1": no limit
    return int(quota[0]) / int(quota[1]) if has_limit and int(quota[1]) else None


def memory_limit(group: Path) -> int | None:
    """Return the bytes that a group may use; None = no limit."""
    limit = (text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes")).strip()
    # Version 1 writes the largest number of pages where there is no limit.
    return int(limit) if limit.isdigit() and int(limit) < 1 << 62 else None


class MemoryGroup:
    """The control group whose memory limit is the tightest of those that apply.

    Args:
        root: of the file system.
    """

    def __init__(self, root: str = "/"):
        limited = [
            (limit, folder) for folder in control_groups(Path(root)) if (limit := memory_limit(folder)) is not None
        ]
        self._folder = min(limited)[1] if limited else None

    def held(self) -> float | None:
        """Return the bytes that the kernel cannot take back by dropping its cache of files."""
        if self._folder is None:
            return None
        counts = _counts_in(self._folder / "memory.stat")
        if "anon" in counts:  # version 2
            names: tuple[str, ...] = ("anon", "shmem", "kernel_stack", "slab_unreclaimable")
        else:  # version 1: `total_` includes the groups below
            names = ("total_rss", "total_shmem", "total_swap")
        return float(sum(counts.get(name, 0) for name in names)) if counts else None


class KillCount(NamedTuple):
    """The control group in which the kernel counts this process's kills, and the counts so far.

    Attributes:
        folder: of the group, as this process sees it; "" = unknown.
        inode: of that folder, by which another process knows whether it sees the same group.
        kills: how many processes were killed for memory, {"container", "machine"}, if known.
    """

    folder: str
    inode: int
    kills: dict[str, int]


def kill_count(root: str = "/", folder: str = "", inode: int = 0) -> KillCount:
    """Count the processes that the kernel killed for lack of memory.

    Args:
        root: of the file system; another one in tests.
        folder: of another process's control group; "" = this process's own.
        inode: of that folder: the group is counted only if it is still the same one.

    Returns: `kills` has "container", those in the group since it was made, and "machine", those since its start; each
        where the kernel reports it. `folder` is "" and `inode` 0 where the group is not known.
    """
    at = Path(root)
    if folder:
        groups = [at / folder.lstrip("/")]
    else:  # the innermost group first: in version 1 only that one counts
        groups = sorted(control_groups(at), key=lambda folder_of_group: -len(folder_of_group.parts))
    result = KillCount("", 0, {})
    for group in groups:
        kills = _oom_kills(group)
        if kills is not None and (not folder or _inode(group) == inode):
            result = KillCount(f"/{group.relative_to(at)}", _inode(group), {"container": kills})
            break
    on_machine = _counts_in(at / "proc/vmstat").get("oom_kill")
    if on_machine is not None:
        result.kills["machine"] = on_machine
    return result


def _oom_kills(group: Path) -> int | None:
    """Return how many processes of a group the kernel killed for lack of memory; None = unknown."""
    for name in ("memory.events", "memory.oom_control"):  # version 2, version 1
        kills = _counts_in(group / name).get("oom_kill")
        if kills is not None:
            return kills
    return None


def _inode(folder: Path) -> int:
    """Return a folder's inode; 0 if there is none."""
    try:
        return folder.stat().st_ino
    except OSError:
        return 0


def _counts_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number in each line."""
    pairs = (line.split() for line in text_of(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def text_of(path: Path) -> str:
    """Return a file of the kernel's; "" where there is none, or none that this process may read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def cpus_allowed() -> int | None:
    """Return the number of CPUs that this process may run on; None where the system has no say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
