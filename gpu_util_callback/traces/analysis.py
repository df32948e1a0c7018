"""One trace, explained: steps, accounts, kernels and findings, as JSON and as recording rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpu_util_callback.recording.manifest_facts import Silent, SourceLateRank
from gpu_util_callback.traces import hostside, limits
from gpu_util_callback.traces.breakdown import DeviceAccount, account
from gpu_util_callback.traces.intervals import Intervals
from gpu_util_callback.traces.kernels import (
    CopyGroup,
    KernelGroup,
    LaunchStats,
    copy_groups,
    kernel_groups,
    launch_stats,
)
from gpu_util_callback.traces.model import KERNELS, Device, DeviceKind, HostKind, Process, Trace, groups
from gpu_util_callback.traces.steps import MIN_KERNELS, Steps, find_steps

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import AnyFinding  # with all rules

_UNLINKED_SHARE = 0.1  # of the kernels: where the calls that launched more of them are missing, it is said
# Fewer kernels in fewer steps are a fragment, not a training: its idle time is not evidence.
_MIN_STEPS = 3


@dataclass(slots=True)
class DeviceAnalysis:
    """One GPU that had any activity."""

    index: int  # unique within the analysis; the process's own ordinal where that is unique
    account: DeviceAccount
    kernels: list[KernelGroup]
    copies: list[CopyGroup]
    launches: LaunchStats
    kernel_busy: Intervals  # collectives included: they are kernels
    any_busy: Intervals

    @property
    def device(self):
        return self.account.device

    @property
    def span(self) -> tuple[int, int]:
        return int(self.any_busy.start[0]), int(self.any_busy.end[-1])


@dataclass
class ProcessAnalysis:
    """One process: its steps, its GPUs, its host."""

    process: Process
    steps: Steps
    devices: list[DeviceAnalysis]
    host_ops: list[hostside.HostOp]
    stages: list[hostside.TracedStage]
    once: np.ndarray  # rows of the host's events that are paid for once
    late_rank: SourceLateRank | None = None

    @cached_property
    def waits(self) -> Intervals:
        """The times in which the host fetched input in any thread, waiting or not."""
        return self.process.events.times(self.process.events.of(HostKind.INPUT_WAIT))

    @cached_property
    def ops(self) -> Intervals:
        """The times in which the host executed ops of the framework in any thread."""
        return self.process.events.times(self.process.events.of(HostKind.OP))

    @property
    def once_times(self) -> Intervals:
        """The times of one-time costs."""
        return self.process.events.times(self.once)

    @property
    def unused_devices(self) -> list[int]:
        """The GPUs that were visible, and have no events."""
        return [d.index for d in self.process.devices if not len(d.events)]

    @property
    def active(self) -> list[DeviceAnalysis]:
        """The GPUs that computed, or else all with any activity."""
        at_work = {id(device) for device in self.process.active_devices}
        return [d for d in self.devices if id(d.device) in at_work] or self.devices

    @property
    def has_steps(self) -> bool:
        """True if the steps are certainly steps, not all GPU work as one."""
        return self.steps.judged

    @property
    def enough_work(self) -> bool:
        """True if the GPUs did enough to be judged: many kernels, or some in several steps."""
        kernels = max((d.launches.kernels for d in self.devices), default=0)
        return kernels >= MIN_KERNELS or (self.has_steps and len(self.steps) >= _MIN_STEPS)

    @property
    def idle_judged(self) -> bool:
        """True if shares of idle time are meaningful: a GPU worked, and enough."""
        return bool(self.devices) and self.enough_work

    def share(self, category: str) -> float:
        """Return a category's share of all steps, mean over the active GPUs (0 without GPUs)."""
        total = int(self.steps.duration_ps.sum())
        if not total or not self.active:
            return 0.0
        spent = [int(d.account.steps[category].sum()) for d in self.active]
        return sum(spent) / len(spent) / total

    def input_wait_ps(self) -> np.ndarray:
        """Return the time each step lost to input: idle_input, mean over the active GPUs.

        Without a GPU in the trace it is the host's wait. float64[steps], picoseconds.
        """
        if not self.active:
            return self.host_input_ps().astype(np.float64)
        columns = [d.account.steps["idle_input"] for d in self.active]
        return np.mean(np.stack(columns), axis=0)

    def host_input_ps(self) -> np.ndarray:
        """Return the host's fetch time within each step: int64[steps], picoseconds."""
        return self.steps.measure(self.waits)


@dataclass
class Analysis:
    """The analysis of a trace; `output` makes JSON and rows of a recording of it."""

    trace: Trace
    processes: list[ProcessAnalysis]
    findings: list[AnyFinding]
    problems: list[str] = field(default_factory=list)  # the reader's, and limits of the numbers
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)  # cause -> name -> value
    thresholds_set: dict[str, float] = field(default_factory=dict)  # those other than the default
    silent: list[Silent] = field(default_factory=list)  # causes that cannot be judged
    verdict: str = ""

    @property
    def devices(self) -> list[DeviceAnalysis]:
        """The GPUs of all processes that had any activity."""
        return [d for p in self.processes for d in p.devices]

    @cached_property
    def wording(self) -> hostside.Wording:
        """The framework that advice is written for."""
        return hostside.wording(self.trace)


def measure(trace: Trace) -> Analysis:
    """Find a trace's steps, account for every GPU's time, sum up its kernels; without findings.

    GPUs keep their numbers where these differ, else they are counted over all processes.
    """
    # Several processes may each have a GPU 0.
    indexes = [d.index for p in trace.processes for d in p.devices if len(d.events)]
    unique = len(set(indexes)) == len(indexes)
    processes = []
    problems = list(trace.problems)
    count = 0
    for process in trace.processes:
        steps = find_steps(process, trace.names)
        once = hostside.one_time_costs(process, trace.names, steps)
        devices = []
        chosen, left_out = _accountable(process, steps)
        if left_out:
            problems.append(left_out)
        for device in chosen:
            busy = device.busy()
            if not len(busy):
                continue
            devices.append(
                DeviceAnalysis(
                    index=device.index if unique else count,
                    account=account(process, device, steps, process.events.times(once)),
                    kernels=kernel_groups(process, device, trace.names),
                    copies=copy_groups(device),
                    launches=launch_stats(process, device, trace.names),
                    kernel_busy=device.busy(*KERNELS),
                    any_busy=busy,
                )
            )
            count += 1
        processes.append(
            ProcessAnalysis(
                process=process,
                steps=steps,
                devices=devices,
                host_ops=hostside.host_ops(process, trace.names),
                stages=hostside.pipeline_stages(process, trace.names),
                once=once,
            )
        )
    _find_late_rank(processes, trace.paths)
    notes = [note for p in processes for note in (*_unjudged(p), *_unlinked(p))]
    problems = list(dict.fromkeys([*problems, *notes]))  # each once
    return Analysis(trace, processes, [], problems)


# The late rank is the one for which the others spend this share of their waits in collectives.
_MOSTLY_FOR_ONE = 0.5


def _find_late_rank(processes: list[ProcessAnalysis], paths: list[str]) -> None:
    """Find the rank for which the others wait, by each rank's time in the same collective.

    The last one to come is in it for as long as it takes, all others for longer. Compared are the
    steps in which all ranks have the same collectives in the same order, one GPU a rank; not of
    jobs that divide their ranks into groups.
    """
    ranks = [p for p in processes if len(p.active) == 1]
    sizes = set.union(set(), *(p.process.facts.get("group_sizes", ()) for p in processes))
    if len(ranks) < 2 or len(ranks) < len(processes) or sizes - {len(ranks)}:
        return
    sequences = [_collectives_by_step(p) for p in ranks]
    parts = []
    for step in set.intersection(*(set(steps) for steps in sequences)):
        names, took = zip(*(steps[step] for steps in sequences), strict=True)
        if all(np.array_equal(names[0], other) for other in names[1:]):
            parts.append(np.stack(took))
    if not parts:
        return
    took = np.concatenate(parts, axis=1)  # ranks x collectives
    waited = took - took.min(axis=0)
    for_rank = np.bincount(np.argmin(took, axis=0), waited.sum(axis=0), len(ranks))
    late = int(np.argmax(for_rank))
    if for_rank[late] < _MOSTLY_FOR_ONE * max(1, waited.sum()):
        return
    rank = ranks[late].process.rank
    # A file that does not state its rank is known by its name, if it is of one process.
    path = paths[late] if len(paths) == len(ranks) else ranks[late].process.host
    name = Path(path).name if rank is None else f"rank {rank}"
    for p, waited_ps, total in zip(ranks, waited.sum(axis=1), took.sum(axis=1), strict=True):
        if p is not ranks[late] and total:
            p.late_rank = {"name": name, "waited_pct": 100 * float(waited_ps) / float(total)}


def _collectives_by_step(p: ProcessAnalysis) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return each step's collectives by its label: their names (ids) and durations (ps) on the only GPU at work."""
    events = p.active[0].device.events
    rows = np.flatnonzero(events.kind == DeviceKind.COLLECTIVE)
    step = np.searchsorted(p.steps.start_ps, events.start_ps[rows], "right") - 1
    name, took = events.name[rows], events.duration_ps[rows]
    return {int(p.steps.label[at]): (name[mine], took[mine]) for at, mine in groups(step) if at >= 0}


def _accountable(process: Process, steps: Steps) -> tuple[list[Device], str]:
    """Return the active GPUs, and a line where there are more than can be accounted for, else "".

    Each step has a row for each GPU: an honest file has more events than such rows. A made-up one
    may request the product of many GPUs and many steps, in a few bytes each.
    """
    active = [d for d in process.devices if len(d.events)]
    events = len(process.events) + sum(len(d.events) for d in active)
    cells = limits.FEW_CELLS + limits.CELLS_PER_EVENT * events
    most = max(1, min(limits.MAX_GPUS, cells // max(1, len(steps))))
    if len(active) <= most:
        return active, ""
    work = [int(d.events.duration_ps.sum()) for d in active]
    busiest = sorted(range(len(active)), key=lambda i: -work[i])[:most]
    return [active[i] for i in sorted(busiest)], (
        f"{len(active):,} GPUs in {len(steps):,} steps: only the {most:,} busiest are shown"
    )


def _unjudged(p: ProcessAnalysis) -> list[str]:
    """Return lines about missing evidence: no steps, too little work, GPUs with hardly any kernels or none."""
    notes = []
    if len(p.steps) and not p.has_steps:  # one step, of all GPU work
        between = "the time between the first and the last GPU work is judged as one"
        whole = "the whole is taken as one"
        notes.append(f"no steps in the trace: {between if p.idle_judged else whole}")
    if p.devices and not p.enough_work:
        kernels = max(d.launches.kernels for d in p.devices)
        some = "one kernel" if kernels == 1 else f"{kernels} kernels"
        notes.append(f"too little GPU work to judge idle time: {some} on the busiest GPU of the trace")
    # Some kernels, but so few beside the others' that they are not judged.
    hardly_used = [d for d in p.devices if d.launches.kernels and d not in p.active]
    if hardly_used:
        indexes = ", ".join(str(d.index) for d in hardly_used)
        notes.append(f"GPU {indexes} ran hardly any kernels: left out where the GPUs at work are judged")
    if p.unused_devices and p.devices:
        indexes = ", ".join(str(i) for i in sorted(p.unused_devices))
        notes.append(f"the trace has no events of GPU {indexes}: idle, or not recorded: it does not say")
    return notes


def _unlinked(p: ProcessAnalysis) -> list[str]:
    """Return a line for each GPU of which many kernels have no launch: what it idled for is less certain."""
    notes = []
    for d in p.devices:
        missing = d.launches.kernels - d.launches.linked
        if p.process.has_host and missing > _UNLINKED_SHARE * d.launches.kernels:
            notes.append(
                f"GPU {d.index}: {missing:,} of {d.launches.kernels:,} kernels have no launch call "
                "in the trace; why the GPU idled before them is less certain"
            )
    return notes
