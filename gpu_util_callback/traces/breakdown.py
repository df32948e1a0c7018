"""The GPU account: each GPU's activity in each step, and the causes of its idle time.

Ten disjoint categories per GPU and step that sum to the step exactly. Work comes first (`kernel`,
then copies and communication only where nothing before them hides it). An idle gap that a copy to
the GPU ends belongs to `copy_h2d`, too, while the host makes that copy ready, if the process has one
GPU: for which of several it is made ready is not in a trace. The rest of the step is idle, and every
idle gap is explained by the host's activity before the work that ended it:

* `idle_input`: the host waited for the next batch.
* `idle_launch`: the launch itself (call and start-up of the kernel), or the host issuing one
  launch after another with less than `DISPATCH_GAP_PS` between: the GPU waits between kernels. A
  call that holds the host for longer than that is no launch, but `idle_host`.
* `idle_sync`: the GPU ran dry while the host was waiting for it or for a result of it, so that
  nothing was queued behind.
* `idle_host`: the host did something else; nothing was launched.
* `other`: work was queued and did not run (a dependency on another stream or GPU), copies that
  touch no device, or a trace without the host's side or without any link from work to its launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_util_callback.recording.schema import CATEGORIES, IDLE_CATEGORIES
from gpu_util_callback.traces.intervals import EMPTY, Intervals, union, union_with_first
from gpu_util_callback.traces.model import PS_PER_US, Device, DeviceKind, HostEvents, HostKind, Process
from gpu_util_callback.traces.steps import Steps

# Between two launches of eager code lie tens to hundreds of microseconds of Python and dispatch;
# during a longer pause the host does something else.
DISPATCH_GAP_PS = 1_000 * PS_PER_US
# A launched kernel starts within microseconds on an idle GPU; beyond this it waits on a dependency.
QUEUE_DELAY_PS = 100 * PS_PER_US
# A gap takes some 400 bytes while it is explained: those of 10⁷ events would take a gigabyte together.
_GAPS_AT_ONCE = 1 << 16

# In place of a time: the launching call is not known. Every real time is later.
UNLINKED = np.int64(np.iinfo(np.int64).min)

# Order of work: a category counts only where none before it ran.
_WORK: tuple[tuple[str, tuple[DeviceKind, ...]], ...] = (
    ("kernel", (DeviceKind.KERNEL,)),
    ("copy_h2d", (DeviceKind.COPY_H2D,)),
    ("copy_d2h", (DeviceKind.COPY_D2H,)),
    # A memset is traffic in the device's own memory, as a copy within it.
    ("copy_d2d", (DeviceKind.COPY_D2D, DeviceKind.MEMSET)),
    ("collective", (DeviceKind.COLLECTIVE,)),
)


@dataclass(slots=True)
class DeviceAccount:
    """One GPU's time as ten disjoint sets, and the account of each step."""

    device: Device
    sets: dict[str, Intervals]  # category -> times; `other` is the rest of a step
    steps: dict[str, np.ndarray]  # category -> int64[steps], picoseconds; sums to the step


def account(process: Process, device: Device, steps: Steps, once: Intervals = EMPTY) -> DeviceAccount:
    """Return the ten categories of one GPU over the process's steps.

    Args:
        once: times of what is paid for once. A GPU that idles meanwhile waits for the host,
            whatever call that makes.
    """
    low, high = process.extent
    if len(steps):
        low = min(low, int(steps.start_ps[0]))
        high = max(high, int(steps.end_ps[-1]))
    sets: dict[str, Intervals] = {}
    busy = EMPTY
    for category, kinds in _WORK:
        work = device.busy(*kinds)
        sets[category] = work - busy
        busy = busy | work
    staging, idle = _idle(process, device, steps, low, high)
    sets["copy_h2d"] = sets["copy_h2d"] | staging
    sets.update(idle)
    started = (sets["idle_launch"] | sets["idle_sync"]) & once
    for category in ("idle_launch", "idle_sync"):
        sets[category] = sets[category] - started
    sets["idle_host"] = sets["idle_host"] | started
    rows = {category: steps.measure(sets[category]) for category in CATEGORIES if category != "other"}
    rows["other"] = steps.duration_ps - sum(rows.values())
    return DeviceAccount(device, sets, {c: rows[c] for c in CATEGORIES})


def _idle(
    process: Process, device: Device, steps: Steps, low: int, high: int
) -> tuple[Intervals, dict[str, Intervals]]:
    """Return the idle time of the GPU between `low` and `high` in which the next copy to it is made ready.

    And the four idle categories of the rest; all of them are disjoint.
    """
    events, calls = device.events, process.events
    sets = dict.fromkeys(("staging", *IDLE_CATEGORIES), EMPTY)
    busy, first = union_with_first(events.start_ps, events.end_ps)
    if len(busy) and process.has_host:
        launched, returned = launches(process, device)
        blocked = calls.times(blocking_rows(calls))
        calling = calls.times(calls.of(HostKind.LAUNCH, HostKind.CALL)) - blocked
        host = calling, blocked, _staging(process), _syncs(process, device, returned)
        gaps, parts = busy.complement(low, high), []
        for at in range(0, len(gaps), _GAPS_AT_ONCE):
            some = Intervals(*(edge[at : at + _GAPS_AT_ONCE] for edge in (gaps.start, gaps.end)))
            parts.append(_explained(some, process, device, steps, (busy, first), (launched, returned), host))
        for category in sets if parts else ():
            edges = ([getattr(part[category], edge) for part in parts] for edge in ("start", "end"))
            sets[category] = Intervals(*map(np.concatenate, edges))
        # Without work that is linked to its launch, a late host cannot be shown.
        after_gap = first[busy.start > low]
        if len(after_gap) and not (launched[after_gap] > UNLINKED).any():
            sets["idle_host"] = EMPTY
    return sets.pop("staging"), sets


def _explained(
    gaps: Intervals,
    process: Process,
    device: Device,
    steps: Steps,
    work: tuple[Intervals, np.ndarray],
    launch: tuple[np.ndarray, np.ndarray],
    host: tuple[Intervals, Intervals, Intervals, Intervals],
) -> dict[str, Intervals]:
    """Return the categories of some idle gaps, as `_idle` does; a late host as if work were linked to its launch.

    Args:
        work: when the GPU was busy, and the row of the event that begins each of these times.
        launch: start and end of the call that launched each event, else UNLINKED.
        host: when it was in short calls of the driver, in those that hold it, made copies ready, waited for the GPU.
    """
    events, (busy, first), (calling, blocked, staged, sync) = device.events, work, host
    # The work that ends each gap, and its launch time (the gap's end where unknown).
    ends_at = np.searchsorted(busy.start, gaps.end)
    has_next = ends_at < len(busy)
    following = first[np.minimum(ends_at, len(busy) - 1)]
    launched, returned = (np.where(has_next, at[following], UNLINKED) for at in launch)
    has_launch = launched > UNLINKED
    late = np.where(has_launch, np.clip(launched, gaps.start, gaps.end), gaps.end)

    # From a launch to the start of its work; a long delay is a dependency, not a launch.
    queued_until = np.minimum(gaps.end, np.maximum(returned, gaps.start) + QUEUE_DELAY_PS)
    launching = union(late, np.where(has_launch, np.maximum(queued_until, late), late))
    held, launching = launching & blocked, launching - blocked

    # Before it: nothing was queued. First the input, where the wait was over before the launch.
    before = Intervals(gaps.start, late)
    idle_input = _waiting_for_input(process, before)
    remaining = _part(before) - idle_input
    # Then a copy that is made ready, whoever waits for it.
    copied = has_next & (events.kind[following] == DeviceKind.COPY_H2D)
    staging = remaining & staged & _part(before, copied)
    remaining = remaining - staging
    # Then synchronization: the host was waiting for the GPU when it ran dry.
    sync = sync.clip(int(gaps.start[0]) - 1, int(gaps.end[-1]))
    # A final read-back of a result is the same, where no waiting call was recorded (TensorFlow
    # polls): the host had nothing queued behind it.
    read_back = events.end_ps[events.kind == DeviceKind.COPY_D2H]
    drained = sync.contains(gaps.start - 1) | np.isin(gaps.start, read_back)
    unexplained = remaining.measure(before.start, before.end) - (remaining & sync).measure(before.start, before.end)
    short = unexplained <= DISPATCH_GAP_PS
    # Gaps that contain the beginning of a step lie between steps.
    straddles = np.searchsorted(steps.start_ps, gaps.end) > np.searchsorted(steps.start_ps, gaps.start)
    idle_sync = remaining & (sync | _part(before, drained & short))
    remaining = remaining - idle_sync
    # Then launching: calls for this device or any driver call, and short pauses between launches.
    calling = calling.clip(int(gaps.start[0]), int(gaps.end[-1]))
    dispatch = remaining & (calling | _part(before, short & has_launch & ~straddles))
    return {
        "staging": staging,
        "idle_input": idle_input,
        "idle_launch": dispatch | launching,
        "idle_sync": idle_sync,
        "idle_host": (remaining - dispatch) | held,
    }


def blocking_rows(calls: HostEvents) -> np.ndarray:
    """Return the rows of the driver's and runtime's calls that hold the host for over `DISPATCH_GAP_PS`."""
    return np.flatnonzero(calls.of(HostKind.LAUNCH, HostKind.CALL) & (calls.duration_ps > DISPATCH_GAP_PS))


def _part(pieces: Intervals, where: np.ndarray | slice = slice(None)) -> Intervals:
    """Return some of the pieces (which may be empty ones) as a set."""
    return union(pieces.start[where], pieces.end[where])


def launches(process: Process, device: Device) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of the host's call that launched each event of a device.

    Returns:
        int64[events] each, ps; UNLINKED where no call is known.
    """
    calls, events = process.events, device.events
    order, keys = process.calls_by_correlation
    start = np.full(len(events), UNLINKED)
    end = np.full(len(events), UNLINKED)
    if not len(order) or not len(events):
        return start, end
    at = np.minimum(np.searchsorted(keys, events.correlation), len(keys) - 1)
    # A call cannot follow the work it launched: clocks of host and device may differ by a
    # little, correlations of another process by much.
    is_linked = (keys[at] == events.correlation) & (events.correlation >= 0)
    is_linked &= calls.start_ps[order[at]] <= events.start_ps + QUEUE_DELAY_PS
    start[is_linked] = calls.start_ps[order[at[is_linked]]]
    end[is_linked] = calls.end_ps[order[at[is_linked]]]
    return start, end


def _waiting_for_input(process: Process, gaps: Intervals) -> Intervals:
    """Return the parts of idle gaps in which the host waited for input: in waits that ended before the launch.

    In a short gap between launches, a wait still in progress when the next work was launched did
    not delay that work (another thread prefetches), and explains nothing.
    """
    events = process.events
    rows = np.flatnonzero(events.kind == HostKind.INPUT_WAIT)
    # For every wait, the gaps it touches; a wait counts in a gap if it ends by the gap's launch.
    start, end = events.start_ps[rows], events.end_ps[rows]
    wait, gap = gaps.overlaps(start, end)
    explains = end[wait] <= gaps.end[gap]
    explains |= (gaps.end - gaps.start)[gap] > DISPATCH_GAP_PS  # in a long gap a wait still in progress counts, too
    wait, gap = wait[explains], gap[explains]
    return union(np.maximum(start[wait], gaps.start[gap]), np.minimum(end[wait], gaps.end[gap]))


def _staging(process: Process) -> Intervals:
    """Return the times in which any thread of the host made a copy to the process's only GPU ready."""
    if sum(len(device.events) > 0 for device in process.devices) > 1:
        return EMPTY
    return process.events.times(process.events.of(HostKind.STAGING))


def _syncs(process: Process, device: Device, returned: np.ndarray) -> Intervals:
    """Return the times the host waited for a device: synchronization calls, blocking copies.

    Args:
        returned: when the call that launched each of its events returned; before any event where it is not known.
    """
    calls, events = process.events, device.events
    blocking = events.of(DeviceKind.COPY_H2D, DeviceKind.COPY_D2H) & (returned >= events.end_ps)
    return calls.times(calls.of(HostKind.SYNC)) | union(events.start_ps[blocking], returned[blocking])
