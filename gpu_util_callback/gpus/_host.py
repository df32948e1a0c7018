"""Host metrics: CPU, memory, disk, network, and this process's share of them."""

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpu_util_callback.cgroup import MemoryGroup, control_groups, cpu_quota, cpus_allowed, memory_limit, text_of
from gpu_util_callback.gpus._gate import Memory
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.processes import core_s, descendants
from gpu_util_callback.recording.clock import Clock

NAN = float("nan")
T = TypeVar("T")

_TOO_SOON_S = 0.3  # the kernel counts CPU time in steps of 10 ms
_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # inside user and nice
_WORKERS_S = 5.0  # how often processes are listed, at most: it takes milliseconds
_CORES_S = 1.0  # how often the CPU time of this process' children and the waits of its threads are read, at most
_SELDOM_SHARE = 0.002  # of a core, that either of these may take
_COLUMNS = (
    "process_cpu_pct process_memory_bytes process_read_bytes_per_s process_write_bytes_per_s "
    "process_held_bytes process_address_space_bytes python_blocks workers workers_memory_bytes "
    "children_cpu_pct threads_queued_pct container_memory_bytes cpu_pct cpu_max_pct iowait_pct "
    "memory_used_bytes memory_available_bytes disk_read_bytes_per_s disk_write_bytes_per_s "
    "network_rx_bytes_per_s network_tx_bytes_per_s"
)


class Host:
    """Rows of group "host": shares and rates over the time since the last row, NaN = unknown.

    process_cpu_pct and children_cpu_pct (its children, without it) are in percent of one core
    (400 = four cores busy); cpu_pct of all cores. threads_queued_pct: in percent of one core as well, what
    this process' threads were ready to run and had no core for.
    Counters are kept here, since psutil's own are shared by the whole process.
    """

    def __init__(self, store: Store, clock: Clock, memory: Memory) -> None:
        self._store = store
        self._clock = clock
        self._memory = memory
        self._psutil: Any = None
        self._process: Any = None
        self._read_s = -_TOO_SOON_S
        self._unreadable: set[str] = set()  # parts that psutil failed to read
        self._last_counts: dict[str, tuple[float, Any]] = {}  # counter -> (perf seconds, its reading)
        self._group = MemoryGroup()
        # part -> its last reading, and when it is due again, perf s
        self._last_readings: dict[str, tuple[Any, float]] = {}
        try:
            import psutil

            self._psutil = psutil
            self._process = psutil.Process()
        except Exception as error:  # missing, or no /proc
            memory.note("psutil", "", f"{type(error).__name__}: {error}", "pip install psutil")
        self.columns = tuple(_COLUMNS.split())

    def read(self) -> None:
        """Store one row, if the last one is `_TOO_SOON_S` old; the first one only starts the counters."""
        now_s = time.perf_counter()
        if self._psutil is None or now_s - self._read_s < _TOO_SOON_S:
            return
        self._read_s = now_s
        row = dict.fromkeys(self.columns, NAN)
        first = not self._last_counts
        self._cpu(row)
        self._read_process(row)
        memory = self._try("memory", self._psutil.virtual_memory)
        if memory is not None:
            row["memory_used_bytes"] = float(memory.total - memory.available)
            row["memory_available_bytes"] = float(memory.available)
        self._read_held_memory(row)
        self._traffic(row)
        if not first:
            self._store.add("host", self.columns, self._clock.now(), list(row.values()))

    def _cpu(self, row: dict[str, float]) -> None:
        """Set the use of all cores, that of the busiest, and their wait for I/O, in percent since the last reading.

        The first reading sets none.
        """
        times = self._try("CPU", lambda: self._psutil.cpu_times(percpu=True))
        before = self._last_counts.get("cpu", (0.0, None))[1]
        self._last_counts["cpu"] = (time.perf_counter(), times)
        if not times or not before or len(times) != len(before):
            return
        names = [name for name in times[0]._fields if name not in _COUNTED_TWICE]
        busy = []
        waited, total = 0.0, 0.0
        for now, then in zip(times, before, strict=True):
            spent = {name: max(0.0, getattr(now, name) - getattr(then, name)) for name in names}
            whole = sum(spent.values())
            if whole <= 0:
                continue
            busy.append(100 * (whole - sum(spent.get(name, 0.0) for name in _IDLE)) / whole)
            waited += spent.get("iowait", 0.0)
            total += whole
        if busy:
            row["cpu_pct"] = sum(busy) / len(busy)
            row["cpu_max_pct"] = max(busy)
            row["iowait_pct"] = 100 * waited / total if hasattr(times[0], "iowait") else NAN

    def _read_process(self, row: dict[str, float]) -> None:
        """Set this process's CPU (100 = one core), memory and I/O."""

        def read() -> tuple[float, Any]:
            """Return this process's CPU seconds and memory."""
            with self._process.oneshot():
                times = self._process.cpu_times()
                return times.user + times.system, self._process.memory_info()

        answer = self._try("process", read)
        if answer is not None:
            row["process_cpu_pct"] = 100 * self._rate("process_cpu", answer[0])
            row["process_memory_bytes"] = float(answer[1].rss)
            row["process_address_space_bytes"] = float(answer[1].vms)
        io = self._try("process I/O", lambda: self._process.io_counters())
        if io is not None:
            row["process_read_bytes_per_s"] = self._rate("process_read", io.read_bytes)
            row["process_write_bytes_per_s"] = self._rate("process_write", io.write_bytes)

    def _read_held_memory(self, row: dict[str, float]) -> None:
        """Set what this process, its workers and its container hold (bytes), and the use of cores by its children."""
        held_bytes = _held_bytes()
        row["process_held_bytes"] = row["process_memory_bytes"] if held_bytes is None else held_bytes
        row["python_blocks"] = float(sys.getallocatedblocks())
        row["workers"], row["workers_memory_bytes"] = self._seldom("workers", _WORKERS_S, self._read_workers)
        row["children_cpu_pct"], row["threads_queued_pct"] = self._seldom("cores", _CORES_S, self._read_cores)
        container_bytes = self._group.held()
        row["container_memory_bytes"] = NAN if container_bytes is None else container_bytes

    def _read_workers(self) -> tuple[float, float]:
        """Return the number of this process's children, and the bytes that they hold of their own.

        NaN if none are listed.
        """
        children = descendants()
        if children is None:
            return NAN, NAN
        sizes = [own for child in children if (own := _own_bytes(child.pid)) is not None]  # else it has ended
        return float(len(sizes)), float(sum(sizes))

    def _read_cores(self) -> tuple[float, float]:
        """Return the CPU use of this process's children, and what its threads wait for a core, in percent of one core.

        NaN = unknown.
        """
        children_s, (had_s, waited_s) = _children_cpu_s(), core_s(os.getpid())
        children = NAN if children_s is None else self._rate("children", children_s)
        return 100 * children, 100 * self._rate("queued", waited_s) if had_s else NAN

    def _seldom(self, part: str, every_s: float, read: Callable[[], T]) -> T:
        """Return the reading of a part that costs more than others: its last one, or a new one if that is due.

        Args:
            every_s: between two readings, at least; more where reading takes more than its share of a core.
        """
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        reading, due_s = self._last_readings.get(part, (None, 0.0))
        if now_s >= due_s:
            reading = read()  # its cost in CPU time: on full cores the clock counts the wait for one as well
            self._last_readings[part] = reading, now_s + max(every_s, (time.thread_time() - cpu_s) / _SELDOM_SHARE)
        return reading

    def _traffic(self, row: dict[str, float]) -> None:
        """Set what disks and network cards moved, in bytes per second, without the loopback."""
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
        """Return a counter's growth per second since its reading before; NaN for the first, or after a reset."""
        now_s = time.perf_counter()
        before = self._last_counts.get(name)
        self._last_counts[name] = (now_s, count)
        if before is None or now_s <= before[0] or count < before[1]:
            return NAN
        return (count - before[1]) / (now_s - before[0])

    def _try(self, part: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; None where it failed once: that part is switched off and reported."""
        if part in self._unreadable:
            return None
        try:
            return read()
        except Exception as error:
            self._unreadable.add(part)
            self._memory.note(f"host {part}", "", f"{type(error).__name__}: {error}")
            return None


def _held_bytes() -> int | None:
    """Return the bytes of this process that the kernel cannot take back as it can files' pages; None without /proc."""
    return _sum_of("/proc/self/status", ("RssAnon", "RssShmem", "VmSwap"))


def _own_bytes(pid: int) -> int | None:
    """Return what a process holds that no other one shares; None where the kernel does not say.

    A forked worker's resident memory has all that its parent had, before it copies any of it.
    """
    return _sum_of(f"/proc/{pid}/smaps_rollup", ("Private_Dirty", "Swap"))


def _sum_of(path: str, names: Sequence[str]) -> int | None:
    """Return the sum, in bytes, of the lines of these names in a file of the kernel's (in kB); None without any."""
    sizes = []
    try:
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name in names:
                sizes.append(1024 * int(value.split()[0]))
    except (OSError, ValueError):
        return None
    return sum(sizes) if sizes else None


def _children_cpu_s() -> float | None:
    """Return the CPU seconds of this process' children so far, those that have ended included; None = unknown."""
    children, times = descendants(), os.times()
    if children is None:
        return None
    return times.children_user + times.children_system + sum(child.cpu_s for child in children)


def host_facts(root: str = "/") -> dict[str, object]:
    """Return the manifest's `machine`; None = unknown or unlimited.

    system: "Linux", "WSL", "Windows", "Darwin". cpu: the name of its model. cpu_float16: whether
    the CPU computes in float16, beyond storing it. cpus_allowed: the CPUs this process may run on.
    cpu_quota: cores' worth of time its control group may use (a container's `--cpus`).
    address_space_limit_bytes: `ulimit -v`.

    Args:
        root: of the file system; another one in tests.
    """
    groups = control_groups(Path(root))
    quotas = [quota for folder in groups if (quota := cpu_quota(folder)) is not None]
    limits = [limit for folder in groups if (limit := memory_limit(folder)) is not None]
    try:
        import psutil

        total_bytes = psutil.virtual_memory().total
    except Exception:
        total_bytes = None
    return {
        "system": "WSL" if "microsoft" in platform.release().lower() else platform.system() or None,
        **_cpu(Path(root)),
        "cpus": os.cpu_count(),
        "cpus_allowed": cpus_allowed(),
        "cpu_quota": min(quotas, default=None),
        "memory_limit_bytes": min(limits, default=None),
        "address_space_limit_bytes": _address_space_limit(),
        "memory_total_bytes": total_bytes,
    }


# Arithmetic in float16 by the names of the Linux kernel: x86's, and ARM's.
_FLOAT16 = {"avx512_fp16", "asimdhp"}


def _cpu(root: Path) -> dict[str, str | bool | None]:
    """Return `cpu` (the model's name) and `cpu_float16` of the first CPU; None where the system does not say."""
    facts: dict[str, str | bool | None] = {"cpu": None, "cpu_float16": None}
    for line in text_of(root / "proc/cpuinfo").partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            facts["cpu"] = " ".join(value.split()) or None
        elif name.strip() in ("flags", "Features"):
            facts["cpu_float16"] = not _FLOAT16.isdisjoint(value.split())
    return facts


def _address_space_limit() -> int | None:
    """Return the limit on this process's address space in bytes; None without one."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, ValueError, OSError):  # Windows has none
        return None
    return None if limit == resource.RLIM_INFINITY else limit
