"""Cores of the host over a range: how many this process may use, and who keeps them busy."""

import math
from typing import NamedTuple

from gpu_util_callback.diagnosis.evidence.pipeline import LITTLE
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.thresholds import THREE_QUARTERS, Constant, Count

FULL_CPU_PCT = Constant(100 * THREE_QUARTERS, "with the cores this busy, more threads take time from each other")
# Who may compute beside a process on its own, and beside one of a job, each of which measures only its own time.
WHO_ELSE = ("other programs", "other processes of this job or other programs")
THREADS = Count(2, "threads of a training that need a core: the step's and the input's")


class Cores(NamedTuple):
    """Numbers of cores, means over a range.

    Attributes:
        allowed: whole cores that this process may use; 0 = unknown.
        in_use: cores of the machine that anybody keeps busy; infinite if not sampled.
        own: those that this process keeps busy; None = not sampled.
        of_workers: those that its worker processes keep busy; None = not sampled.
        of_others: those that others keep busy, which are taken to fill first the cores on which this process
            cannot run; 0 = none, or unknown.
        others: who these may be, of `WHO_ELSE`.
        left: those that others leave to this process.
        reachable: those that this process can have beside the others: what they leave idle, or the fair share of
            two threads on a machine that is full; infinite if unknown.
        spare: idle ones. On PyTorch, cores on which its threads spin count as busy.
        full: whether the cores that this process may use are busy.
        queued: share (0-1) of the time in which this process' threads could run and had no core; None = not sampled.
    """

    allowed: int
    in_use: float
    own: float | None
    of_workers: float | None
    of_others: float
    others: str
    left: float
    reachable: float
    spare: float
    full: bool
    queued: float | None

    @property
    def others_compute(self) -> bool:
        """True if others take a noticeable part of this process' cores."""
        return 0 < LITTLE * self.allowed <= self.of_others and self.left < self.allowed

    @property
    def has_room(self) -> bool:
        """True if a core is free for a process that computes."""
        return self.spare >= 1

    @property
    def may_be_lacking(self) -> bool:
        """True if what hardly computes may only wait for a core: all are busy, or others keep most of them."""
        return self.full or 2 * self.of_others > self.allowed

    @property
    def busy(self) -> str:
        """The busy cores in words, with the share of others."""
        count = {1: "the only core is", 2: "both cores are"}.get(self.allowed, f"all {self.allowed or ''} cores are")
        others = f", {min(self.allowed, self.of_others):.1f} of them with {self.others}" if self.others_compute else ""
        return f"{' '.join(count.split())} busy{others}"


def measure_cores(run: Run, where: Range) -> Cores:
    """Measure the cores over a range of a run.

    What the samples lack stays unknown: see `Cores` for each value's default. `spinning`: threads of PyTorch's CPU
    steps, which keep their core busy while they wait.
    """
    columns = ("cpu_pct", "process_cpu_pct", "children_cpu_pct", "threads_queued_pct")
    percents = (run.host_mean(column, *where.extent_ns) for column in columns)
    busy, own, of_workers, queueing = (None if pct is None else pct / 100 for pct in percents)
    on_machine, runs_on, allowed = _core_counts(run)
    in_use = busy * on_machine if busy is not None and on_machine else math.inf
    of_others, reachable, spare = 0.0, math.inf, 0.0  # defaults where the process' own CPU time is unknown
    if own is not None and not math.isinf(in_use) and not (of_workers is None and run.fit.get("input_processes")):
        # Without the workers' share, theirs would count as somebody else's.
        of_others = max(0.0, in_use - own - (of_workers or 0) - (on_machine - runs_on))
    left = min(allowed, runs_on - of_others)
    own_and_workers = (own or 0.0) + _cores_of_workers(run, of_workers, in_use)
    full = 100 * own_and_workers >= FULL_CPU_PCT * (allowed or math.inf) or 100 * (busy or 0) >= FULL_CPU_PCT
    if allowed and own is not None:
        reachable = max(own, min(allowed, max(left, runs_on * THREADS / (THREADS + of_others))))
        spinning = (run.fit.get("step_threads") or 0) * ((run.framework, run.device) == ("torch", "cpu"))
        spare = 0.0 if full else max(0.0, left - max(own_and_workers, spinning))
    queued = None if queueing is None or own is None else max(0.0, queueing) / max(1.0, queueing + own)
    others = WHO_ELSE[int(run.manifest.get("world_size", 1)) > 1 or run.manifest.get("trial_of") == "Ray Tune"]
    return Cores(allowed, in_use, own, of_workers, of_others, others, left, reachable, spare, full, queued)


def _core_counts(run: Run) -> tuple[int, int, int]:
    """Return the numbers of cores: of the machine, of this process' affinity, and within its CPU quota; 0 = unknown."""
    machine = run.machine.get("cpus") or 0
    runs_on = run.machine.get("cpus_allowed") or machine
    if not runs_on:
        return machine, 0, 0
    quota = run.machine.get("cpu_quota") or runs_on
    return machine, runs_on, max(1, round(min(runs_on, quota)))


def _cores_of_workers(run: Run, of_workers: float | None, in_use: float) -> float:
    """Return the number of cores that worker processes keep busy: 1 for each where that was not measured."""
    processes = run.fit.get("input_processes") or "pydataset" not in run.input_kind
    workers = int(run.fit.get("input_workers") or 0) if processes else 0
    return workers * min(1.0, in_use) if of_workers is None else of_workers * (workers > 0)
