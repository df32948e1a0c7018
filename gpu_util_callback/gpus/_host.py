"""Host metrics: CPU by core, memory, disk, network, and this process's share of them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_util_callback.gpus._gate import Memory
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = ["Host", "host_facts"]

NAN = float("nan")
_TOO_SOON_S = 0.3  # the kernel counts CPU time in steps of 10 ms
_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # inside user and nice


class Host:
    """Rows of group "host": shares and rates over the time since the last row, NaN = unknown.

    process_cpu_pct is in percent of one core (400 = four cores busy); cpu_pct of all cores.
    Counters are kept here, since psutil's own are shared by the whole process.
    """

    def __init__(self, store: Store, clock: Clock, memory: Memory) -> None:
        self._store = store
        self._clock = clock
        self._memory = memory
        self._psutil: Any = None
        self._process: Any = None
        self._read_s = -_TOO_SOON_S
        self._off: set[str] = set()
        self._before: dict[str, tuple[float, Any]] = {}
        try:
            import psutil

            self._psutil = psutil
            self._process = psutil.Process()
        except Exception as error:  # missing, or no /proc
            memory.note("psutil", "", f"{type(error).__name__}: {error}", "pip install psutil")
        self._cores = (self._psutil and self._psutil.cpu_count()) or os.cpu_count() or 1
        self.columns: tuple[str, ...] = (
            "process_cpu_pct", "process_memory_bytes", "process_threads",
            "process_read_bytes_per_s", "process_write_bytes_per_s",
            "cpu_pct", "cpu_max_pct", "iowait_pct",
            "memory_used_bytes", "memory_available_bytes",
            "disk_read_bytes_per_s", "disk_write_bytes_per_s",
            "network_rx_bytes_per_s", "network_tx_bytes_per_s",
            *(f"cpu{i}_pct" for i in range(self._cores)),
        )  # fmt: skip

    def read(self) -> None:
        """Store one row; the first one only starts the counters."""
        now_s = time.perf_counter()
        if self._psutil is None or now_s - self._read_s < _TOO_SOON_S:
            return
        self._read_s = now_s
        row = dict.fromkeys(self.columns, NAN)
        first = not self._before
        self._cpu(row)
        self._own(row)
        memory = self._try("memory", self._psutil.virtual_memory)
        if memory is not None:
            row["memory_used_bytes"] = float(memory.total - memory.available)
            row["memory_available_bytes"] = float(memory.available)
        self._traffic(row)
        if not first:
            self._store.add("host", self.columns, self._clock.now(), list(row.values()))

    def _cpu(self, row: dict[str, float]) -> None:
        times = self._try("CPU", lambda: self._psutil.cpu_times(percpu=True))
        before = self._before.get("cpu", (0.0, None))[1]
        self._before["cpu"] = (time.perf_counter(), times)
        if not times or not before or len(times) != len(before):
            return
        busy = []
        waited, total = 0.0, 0.0
        for i, (now, then) in enumerate(zip(times, before, strict=True)):
            spent = {
                name: max(0.0, getattr(now, name) - getattr(then, name))
                for name in now._fields
                if name not in _COUNTED_TWICE
            }
            whole = sum(spent.values())
            if whole <= 0:
                continue
            share = 100 * (whole - sum(spent.get(name, 0.0) for name in _IDLE)) / whole
            busy.append(share)
            waited += spent.get("iowait", 0.0)
            total += whole
            if i < self._cores:
                row[f"cpu{i}_pct"] = share
        if busy:
            row["cpu_pct"] = sum(busy) / len(busy)
            row["cpu_max_pct"] = max(busy)
            row["iowait_pct"] = 100 * waited / total if hasattr(times[0], "iowait") else NAN

    def _own(self, row: dict[str, float]) -> None:
        def read() -> tuple[Any, int, int]:
            with self._process.oneshot():
                times = self._process.cpu_times()
                used = times.user + times.system
                return used, self._process.memory_info().rss, self._process.num_threads()

        answer = self._try("process", read)
        if answer is not None:
            rate = self._rate("process_cpu", answer[0])
            row["process_cpu_pct"] = 100 * rate
            row["process_memory_bytes"] = float(answer[1])
            row["process_threads"] = float(answer[2])
        io = self._try("process I/O", lambda: self._process.io_counters())
        if io is not None:
            row["process_read_bytes_per_s"] = self._rate("process_read", io.read_bytes)
            row["process_write_bytes_per_s"] = self._rate("process_write", io.write_bytes)

    def _traffic(self, row: dict[str, float]) -> None:
        disk = self._try("disk", self._psutil.disk_io_counters)
        if disk is not None:
            row["disk_read_bytes_per_s"] = self._rate("disk_read", disk.read_bytes)
            row["disk_write_bytes_per_s"] = self._rate("disk_write", disk.write_bytes)
        cards = self._try("network", lambda: self._psutil.net_io_counters(pernic=True))
        if cards is not None:
            real = [card for name, card in cards.items() if name != "lo"]
            row["network_rx_bytes_per_s"] = self._rate("rx", sum(c.bytes_recv for c in real))
            row["network_tx_bytes_per_s"] = self._rate("tx", sum(c.bytes_sent for c in real))

    def _rate(self, name: str, count: float) -> float:
        now_s = time.perf_counter()
        before = self._before.get(name)
        self._before[name] = (now_s, count)
        if before is None or now_s <= before[0] or count < before[1]:
            return NAN
        return (count - before[1]) / (now_s - before[0])

    def _try(self, what: str, read: Callable[[], Any]) -> Any:
        """Return psutil's answer, or None; a part it cannot read is switched off."""
        if what in self._off:
            return None
        try:
            return read()
        except Exception as error:
            self._off.add(what)
            self._memory.note(f"host {what}", "", f"{type(error).__name__}: {error}")
            return None


def host_facts(root: str = "/") -> dict[str, Any]:
    """Return {"cpus", "cpus_allowed", "cpu_quota", "memory_total_bytes", "memory_limit_bytes"}.

    cpus_allowed: the CPUs this process may run on. cpu_quota: cores' worth of time its control
    group may use (a container's `--cpus`). None = unknown or unlimited.
    """
    groups = _control_groups(Path(root))
    quotas = [quota for folder in groups if (quota := _cpu_quota(folder)) is not None]
    limits = [limit for folder in groups if (limit := _memory_limit(folder)) is not None]
    facts: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "cpus_allowed": None,
        "cpu_quota": min(quotas, default=None),
        "memory_limit_bytes": min(limits, default=None),
    }
    if hasattr(os, "sched_getaffinity"):
        facts["cpus_allowed"] = len(os.sched_getaffinity(0))
    try:
        import psutil

        facts["memory_total_bytes"] = psutil.virtual_memory().total
    except Exception:
        facts["memory_total_bytes"] = None
    return facts


def _control_groups(root: Path) -> list[Path]:
    """Return the folders whose limits apply to this process: its groups and their ancestors.

    One tree in version 2 of control groups, one for each controller in version 1. In a container
    the paths may be the host's, which do not exist: the mount is the container's own group.
    """
    mount = root / "sys/fs/cgroup"
    found = dict.fromkeys([mount, mount / "memory", mount / "cpu", mount / "cpu,cpuacct"])
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        base, own = mount / controllers, Path(path.lstrip("/"))
        found.update(dict.fromkeys(base / part for part in (own, *own.parents)))
    return list(found)


def _cpu_quota(group: Path) -> float | None:
    quota = _text_of(group / "cpu.max").split()  # version 2
    if len(quota) != 2:
        quota = [_text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    known = all(part.isdigit() for part in quota)  # "max" and "-1": no limit
    return int(quota[0]) / int(quota[1]) if known and int(quota[1]) else None


def _memory_limit(group: Path) -> int | None:
    limit = (_text_of(group / "memory.max") or _text_of(group / "memory.limit_in_bytes")).strip()
    # Version 1 writes the largest number of pages where there is no limit.
    return int(limit) if limit.isdigit() and int(limit) < 1 << 62 else None


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
