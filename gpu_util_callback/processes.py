"""Processes and threads as Linux lists them: their state, and their use of the CPU."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

STOPPED, DEAD = "tT", "ZX"  # letters of states


class Descendant(NamedTuple):
    """A descendant of this process.

    Attributes:
        state: its letter in /proc: R runs, S sleeps, D waits for a disk; others in `STOPPED` and `DEAD`.
        cpu_s: CPU seconds so far, those of its ended children included.
    """

    pid: int
    state: str
    cpu_s: float


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/<pid>/stat after the name: [0] is the state, [19] the start; [] without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def runnable_s(pid: int, threads: Iterable[int | None] | None = None) -> float:
    """Return for how long threads of a process have had a core so far, or waited for one, in seconds.

    On a machine whose cores are taken a thread that computes gets few CPU seconds, but it is never idle.
    """
    return sum(core_s(pid, threads))


def core_s(pid: int | str, threads: Iterable[int | None] | None = None) -> tuple[float, float]:
    """Return for how long threads of a process have had a core so far, and waited for one, in seconds.

    Threads that have ended are left out; 0.0 for both where the system does not report it.

    Args:
        pid: "self" for the calling process.
        threads: native identifiers; None = all.
    """
    tasks = f"/proc/{pid}/task"
    had_ns = waited_ns = 0
    try:
        for name in os.listdir(tasks) if threads is None else filter(None, threads):  # noqa: PTH208 - often read
            with open(f"{tasks}/{name}/schedstat", "rb", 0) as file:  # noqa: PTH123
                had, waited = file.read().split()[:2]
            had_ns, waited_ns = had_ns + int(had), waited_ns + int(waited)
    except (OSError, ValueError):  # it has ended; not Linux
        pass
    return had_ns / 1e9, waited_ns / 1e9


def descendants() -> list[Descendant] | None:
    """Return this process' children and theirs, in any order; None where the kernel does not list them.

    Psutil would look at every process of the machine.
    """
    try:
        lists = [(thread / "children").read_text() for thread in Path("/proc/self/task").iterdir()]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    pids, processes = [int(pid) for text in lists for pid in text.split()], []
    while pids:
        pid = pids.pop()
        fields = stat_of(pid)
        try:
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:  # it has ended
            pass
        if fields:
            cpu_s = sum(map(int, fields[11:15])) / ticks  # its own, and of its children that ended
            processes.append(Descendant(pid, fields[0].decode(), cpu_s))
    return processes
