"""The sampler: GPU and host metrics, read in daemon threads."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gpu_util_callback.gpus import _gate
from gpu_util_callback.gpus._gate import Gate, Memory, Retired
from gpu_util_callback.gpus._host import Host, host_facts
from gpu_util_callback.gpus._store import FrameworkGpu, Store
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.recording.segments import SampleBlock

if TYPE_CHECKING:
    from gpu_util_callback.gpus._devices import NvmlGpu
    from gpu_util_callback.gpus._reader import GpuReader, XidWatch

HANG_S = 1.0  # a call of the driver that takes this long hangs, as far as anybody knows: others get its work
WATCH_S = 0.5  # between two looks for such calls
SLOW_S = 1.0  # host metrics and critical errors
Opened: TypeAlias = "tuple[Gate | None, Sequence[GpuReader], XidWatch | None]"


class RateController:
    """The period of ticks: as requested, longer while the driver is slow or our CPU share is high.

    A tick may take a quarter of its period (work that waits for a slow
    driver delays training, too) and `CPU_SHARE` of one core per GPU.

    Args:
        hz: the requested rate.
        gpus: number of GPUs read in a tick.
    """

    SLOWEST_S = 10.0
    CPU_SHARE = 0.02

    def __init__(self, hz: float, gpus: int) -> None:
        self.asked_s = 1.0 / max(hz, 0.1)
        self.period_s = self.asked_s
        self._cpu_share = self.CPU_SHARE * max(gpus, 1)
        self._wall_s = 0.0
        self._cpu_s = 0.0
        self._ticks = 0

    def tick(self, wall_s: float, cpu_s: float) -> None:
        """Account for one tick, by its duration and CPU time in s, and set `period_s`, that of the next."""
        self._ticks += 1
        if self._ticks <= 2:
            return  # the first ticks load symbols
        self._wall_s += 0.2 * (wall_s - self._wall_s)  # moving means over about 5 and 10 ticks
        self._cpu_s += 0.1 * (cpu_s - self._cpu_s)
        period_s = max(self.asked_s, 4 * self._wall_s, self._cpu_s / self._cpu_share)
        self.period_s = min(period_s, max(self.SLOWEST_S, self.asked_s))


class Worker(threading.Thread):
    """Reads its GPUs tick by tick until stopped; after a hang, only the GPU that hung.

    Args:
        open_driver: opens the driver on this thread.
        hz: ticks per second.
        stopped: set when the sampler stops.
        patient: its GPU hung before: the driver may be slow rather than dead.

    Attributes:
        gate: None until the driver is open.
        reading: the reader that is reading just now.
        stuck: readers that stay here after a hang; set by the watcher.
        pace: None until it ticks.
        opened: the driver and its GPUs are open.
    """

    def __init__(
        self, open_driver: Callable[[Worker], Opened], hz: float, stopped: threading.Event, patient: bool = False
    ) -> None:
        super().__init__(name="gpu-util-sampler", daemon=True)
        self.patient = patient
        self.gate: Gate | None = None
        self.readers: list[GpuReader] = []
        self.reading: GpuReader | None = None
        self.stuck: list[GpuReader] = []
        self.pace: RateController | None = None
        self.cpu_s = 0.0
        self.opened = False
        self.started_s = time.perf_counter()
        self._open_driver = open_driver
        self._xid: XidWatch | None = None
        self._hz = hz
        self._stopped = stopped

    def run(self) -> None:
        """Open the driver, then tick until stopped; after a hang go on with the GPU that hung alone."""
        try:
            self.gate, readers, self._xid = self._open_driver(self)
        except Retired:  # one GPU blocked the listing; another thread has the others by now
            return
        self.readers = list(readers)
        self.opened = True
        while self.readers and not self._stopped.is_set():
            self.pace = RateController(self._hz, len(self.readers))
            try:
                self._tick_on(self.pace)
            except Retired:
                # A call hung and came back: the watcher has given the other GPUs to a new thread.
                handed_over = [reader for reader in self.readers if reader not in self.stuck]
                self.readers = list(self.stuck)
                self._close(handed_over)
        self._close(self.readers, at_end=True)
        if self._xid is not None:
            self._xid.close()
        self.cpu_s = time.thread_time()

    def _tick_on(self, pace: RateController) -> None:
        """Read this worker's GPUs at its pace until the sampler is stopped."""
        assert self.gate is not None
        due = time.perf_counter()
        xid_due = due
        while not self._stopped.is_set():
            began, cpu_s, slow_s = time.perf_counter(), time.thread_time(), self.gate.slow_s
            for reader in self.readers:
                self.reading = reader
                reader.read(began)
            self.reading = None
            if self._xid is not None and began >= xid_due:
                xid_due = began + SLOW_S
                self._xid.read()
            self.cpu_s = time.thread_time()
            now = time.perf_counter()
            # A call that is slow by itself is queried less often instead: see Memory.slow.
            pace.tick(now - began - (self.gate.slow_s - slow_s), self.cpu_s - cpu_s)
            due = max(due + pace.period_s, now)
            self._stopped.wait(due - now)

    def _close(self, readers: Sequence[GpuReader], at_end: bool = False) -> None:
        """Close readers; `at_end`: after a last reading of all values."""
        for reader in readers:
            try:
                if at_end:
                    reader.read(math.inf)  # what was counted since counters were read
                reader.close()
            except Retired:  # its last call hung as well
                continue


_HANG = "no answer to "
_Call = tuple[str, str, float]  # function, key of its GPU, begin


def _call_of(worker: Worker) -> _Call | None:
    """Return the driver's call in which a worker is: symbol, GPU, and since when in s; None if it is in none."""
    if not worker.opened and worker.gate is None and worker.is_alive():
        # The sampler of an earlier fit may still be starting it.
        since = _gate.starting_since()
        return "nvmlInit", "", worker.started_s if since is None else since
    return worker.gate.calling if worker.gate is not None else None


class Sampler:
    """Samples the GPUs this process may use, at `hz`, until stopped.

    Nothing in it raises to the caller or waits for the driver: NVML is loaded and started in the
    thread. Missing values are in `unavailable`, with a reason.

    One thread, the watcher, reads the host and supervises the workers. Where a call has hung for a second,
    the GPU that hangs keeps its thread and the others move to a new one: at most one per GPU. While
    GPUs are listed it is left out (`Memory.skipped`), and retried when its call returns.

    Args:
        clock: the recording's clock; samples are stamped on it.
        hz: ticks per second; lowered automatically when a driver is slow.
        framework_gpus: the GPUs as the framework numbers them. None or empty: it has none, and all
            GPUs that CUDA_VISIBLE_DEVICES allows are sampled, with `used_by_framework` False.
        environ: the variables that say which GPUs are allowed.

    Example:
        sampler = Sampler(Clock(), framework_gpus=[FrameworkGpu(0, pci_bus_id="0000:17:00.0")])
        sampler.start()
        ...
        for block in sampler.drain():
            writer.append_samples(block.group, block.columns, block.time_ns, block.values)
        sampler.stop()
    """

    def __init__(
        self,
        clock: Clock,
        hz: float = 10,
        framework_gpus: Sequence[FrameworkGpu] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._clock = clock
        self._hz = hz
        self._framework_gpus = framework_gpus
        self._environ = environ
        self._store = Store()
        self._memory = Memory()
        self._pid: int | None = None
        self._started_s = 0.0
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._watcher_cpu_s = 0.0
        self._workers: list[Worker] = []
        self._hanging: dict[Worker, _Call] = {}  # the call in which each hangs
        self._gpus: list[tuple[int, dict[str, object]]] = []  # (index, its facts) of the GPUs to sample
        self._driver: dict[str, str | None] = {}
        self._nvml_gpus: list[dict[str, object]] = []
        self._sampled: set[str] = set()  # keys of GPUs that a thread samples
        _samplers.add(self)

    def start(self) -> None:
        """Start both threads and return at once."""
        if self._watcher is not None:
            return
        self._pid = os.getpid()
        self._started_s = time.perf_counter()
        self._watcher = threading.Thread(target=self._watch, name="gpu-util-host", daemon=True)
        self._begin(self._open)
        self._watcher.start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """End the threads, waiting at most `timeout_s` for all of them; a call that hangs is left behind."""
        if self._watcher is None or not self._in_this_process:
            return
        self._stopped.set()
        until = time.perf_counter() + timeout_s
        self._watcher.join(timeout_s)  # first: it notes which workers hang
        for worker in self._workers:
            if worker not in self._hanging:
                worker.join(max(0.0, until - time.perf_counter()))

    def drain(self) -> list[SampleBlock]:
        """Return the samples since the last drain, one block per group."""
        return self._store.drain() if self._in_this_process else []

    @property
    def gpus(self) -> list[dict[str, object]]:
        """The sampled GPUs; [] until the driver has answered. Unknown facts are None."""
        readers = [reader for worker in tuple(self._workers) for reader in tuple(worker.readers)]
        shown = {reader.index: reader.facts for reader in readers}
        return [gpu | shown.get(index, {}) for index, gpu in self._gpus]

    @property
    def nvml_gpus(self) -> list[dict[str, object]]:
        """All GPUs that NVML sees; "visible": CUDA_VISIBLE_DEVICES allows it."""
        return [dict(gpu) for gpu in self._nvml_gpus]

    @property
    def driver(self) -> dict[str, str | None]:
        """{"driver_version", "cuda_version"}; {} until known."""
        return dict(self._driver)

    @property
    def host(self) -> dict[str, object]:
        """As `host_facts`."""
        return host_facts()

    @property
    def unavailable(self) -> list[Unavailable]:
        """Values that could not be measured: [{"source", "reason", "cure"}]."""
        return self._memory.unavailable

    @property
    def overhead(self) -> dict[str, float]:
        """{"sampler_cpu_pct": our share of one core, "hz": the rate now, 0 while no GPU is sampled}."""
        wall_s = time.perf_counter() - self._started_s
        if self._watcher is None or wall_s <= 0:
            return {"sampler_cpu_pct": 0.0, "hz": 0.0}
        cpu_s = self._watcher_cpu_s + sum(worker.cpu_s for worker in self._workers)
        ticking = [worker for worker in self._workers if worker.readers and worker not in self._hanging]
        rates = [1 / worker.pace.period_s for worker in ticking if worker.pace is not None]
        return {"sampler_cpu_pct": 100 * cpu_s / wall_s, "hz": max(rates, default=0.0)}

    @property
    def _in_this_process(self) -> bool:
        return self._pid == os.getpid()

    # ---- threads ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Read the host, and watch for calls of the driver that hang, until the sampler is stopped."""
        host = Host(self._store, self._clock, self._memory)
        host_due = 0.0
        while True:
            now = time.perf_counter()
            if now >= host_due:
                host_due = now + SLOW_S
                host.read()
            for worker in tuple(self._workers):
                self._check(worker, now)
            self._watcher_cpu_s = time.thread_time()
            if self._stopped.wait(WATCH_S):
                host.read()
                return

    def _check(self, worker: Worker, now: float) -> None:
        """Note a call of a worker that has hung for `HANG_S`, or that one which hung has returned.

        Args:
            now: perf seconds.
        """
        hanging_call, call = self._hanging.get(worker), _call_of(worker)
        if hanging_call is not None and call != hanging_call:
            del self._hanging[worker]
            self._answered(*hanging_call[:2])
        if call is not None and call != hanging_call and now - call[2] >= HANG_S:
            self._hanging[worker] = call
            self._hangs(worker, *call[:2])

    def _answered(self, symbol: str, key: str) -> None:
        """Go on with a GPU whose call hung and returned."""
        self._memory.forget(_HANG + symbol, key)
        if key in self._memory.skipped:
            self._memory.skipped.discard(key)
            self._memory.recovered(key)  # the slow call may be retried at once
            self._begin(self._open, patient=True)

    def _hangs(self, worker: Worker, symbol: str, key: str) -> None:
        """Report a call that hangs, and sample the other GPUs on another thread.

        Args:
            symbol, key: the call and the GPU in which the worker hangs.
        """
        call_name = symbol if key or worker.opened else f"{symbol} (or a call right after it)"
        self._memory.note(
            _HANG + symbol,
            key,
            f"the driver has not answered {call_name} for {HANG_S:g} s",
            "see `dmesg`; `nvidia-smi` probably hangs as well",
        )
        stuck = worker.reading
        answering = [reader for reader in worker.readers if reader is not stuck]
        if worker.opened and answering and worker.gate is not None:  # while it sampled: the others get a new thread
            worker.stuck = [] if stuck is None else [stuck]
            worker.gate.retired.set()
            self._hand_over(worker.gate, answering)
        # while it listed GPUs: list them without this one
        elif not worker.opened and not worker.patient and key and worker.gate is not None:
            self._memory.skipped.add(key)
            worker.gate.retired.set()
            self._begin(self._open)

    def _hand_over(self, gate: Gate, readers: Sequence[GpuReader]) -> None:
        """Give readers of a worker that hangs to a new one, with a gate of its own.

        Args:
            gate: of the worker that hangs.
        """

        def open_again(worker: Worker) -> Opened:
            new_gate = Gate(gate.binding, self._memory)
            worker.gate = new_gate  # before the first call, so that a hang in it is seen
            return new_gate, [reader.renewed(new_gate) for reader in readers], None

        self._begin(open_again, patient=True)  # no other thread opens these GPUs

    def _begin(self, open_driver: Callable[[Worker], Opened], patient: bool = False) -> None:
        """Start a worker, unless the sampler is stopped; forget the workers that ended.

        Args:
            open_driver: opens the driver on the worker's thread.
            patient: as of `Worker`.
        """
        if self._stopped.is_set():
            return
        worker = Worker(open_driver, self._hz, self._stopped, patient)
        ended = [w for w in self._workers if not (w.opened or w.is_alive() or w in self._hanging)]
        self._workers = [w for w in self._workers if w not in ended] + [worker]
        worker.start()

    def _open(self, worker: Worker) -> Opened:
        """Open the driver and all GPUs that no thread samples yet; runs in a worker's thread.

        Returns: (gate, readers, watch for critical errors); (None, [], None) where there is no driver.
        """
        binding, problem = _gate.open_nvml()
        if problem is not None:
            self._memory.off("nvmlInit", "", problem["reason"], problem["cure"])
            return None, [], None
        from gpu_util_callback.gpus import _mapping  # not on a machine without a driver
        from gpu_util_callback.gpus._devices import driver_facts, list_gpus, mode_of
        from gpu_util_callback.gpus._reader import GpuReader, XidWatch

        gate = worker.gate = Gate(binding, self._memory)
        self._driver = driver_facts(gate)
        all_gpus = list_gpus(gate)
        allowed = _mapping.visible(self._environ, all_gpus)
        if allowed.problem:
            self._memory.note("CUDA_VISIBLE_DEVICES", "", allowed.problem, "correct the variable")
        self._nvml_gpus = [_mapping.describe_listed(gpu, allowed.gpus) for gpu in all_gpus]
        matches = _mapping.match(self._framework_gpus, allowed, all_gpus, _mapping.cuda_gpus())
        self._gpus = [(match.index, _mapping.describe(match)) for match in matches]
        readers: list[GpuReader] = []
        used: dict[str, NvmlGpu] = {}
        for match in matches:
            key = f"gpu{match.index}"
            if match.gpu is None:
                if not self._memory.skipped:  # otherwise it may be the GPU that hangs
                    self._memory.note("GPU", key, "NVML lists no GPU with its UUID")
                continue
            # it hangs, or another thread samples it
            if match.gpu.handle is None or key in (*self._sampled, *self._memory.skipped):
                continue
            self._memory.modes[key] = mode_of(gate, match.gpu)
            used[key] = match.gpu
            readers.append(
                GpuReader(gate, match.gpu, match.index, self._store, self._clock, expected=match.framework is not None)
            )
        xid = XidWatch(gate, used, self._store, self._clock) if used else None
        self._sampled.update(used)
        return gate, readers, xid


_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()


def _after_fork() -> None:
    """Disarm in a forked child (a data loader's worker): it has no thread and no driver state."""
    for sampler in list(_samplers):
        sampler._store = Store()  # the old lock may be held by the parent's thread for ever
        sampler._stopped = threading.Event()  # as that of an event
        sampler._watcher, sampler._workers, sampler._hanging = None, [], {}
        sampler._pid = None
        sampler._sampled = set()
        sampler._memory.skipped.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
