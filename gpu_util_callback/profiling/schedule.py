"""The steps of a fit to profile: the callback's argument `trace`, and the budget for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np


@dataclass(frozen=True)
class TraceSchedule:
    """The steps of a fit to profile.

    Steps are counted from 0 over all epochs of the fit. With no argument this is `trace="auto"`:
    a window early in the fit, and then as often as the callback's `overhead_budget` allows.

    Args:
        ranges: Half-open step ranges, e.g. `[(100, 105)]`. They are profiled whatever the cost.
        first: The first step of the first window.
        every: Steps from the start of one window to the start of the next; None = one window.
        steps: Steps of a window; fewer where an epoch ends.
        count: The most windows of one fit; None = any number.
        within_budget: Whether windows at `first`/`every` wait until the budget allows them.
        beside_server: Whether to open windows although a profiler server runs in this process.
            A remote capture asked for during a window fails, hence False.

    Example:

    ```python
    GpuUtilCallback(trace=TraceSchedule(first=100, every=5000, steps=3))
    ```
    """

    ranges: tuple[tuple[int, int], ...] = ()
    first: int | None = None
    every: int | None = None
    steps: int = 5  # of which XProf's Profile tab leaves out the first and the last
    count: int | None = None
    within_budget: bool = True
    beside_server: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranges", _ranges(self.ranges))
        if self.ranges and not (self.first is None and self.every is None):
            raise ValueError("TraceSchedule takes either ranges or first/every, not both")
        for name in ("first", "every", "count", "steps"):
            value = getattr(self, name)
            is_unset = value is None and getattr(TraceSchedule, name) is None
            if not is_unset and (not _is_int(value) or value < (name != "first")):
                raise ValueError(f"TraceSchedule({name}={value!r}): must be a positive number")
        if self.every is not None and self.every <= self.steps:
            raise ValueError(f"TraceSchedule(every={self.every}, steps={self.steps}): windows would overlap")

    @property
    def explicit(self) -> bool:
        """Return whether the user named the steps, so that no budget applies."""
        return bool(self.ranges) or (self.first is not None and not self.within_budget)

    @classmethod
    def of(cls, trace: object) -> TraceSchedule | None:
        """Return the schedule for the callback's argument `trace`; None = no windows.

        Args:
            trace: "auto", "off" (or None, False), step ranges, or a TraceSchedule.

        Raises:
            ValueError: for anything else, with the possible values.
        """
        if isinstance(trace, cls):
            return trace
        if trace == "auto" or trace is True:
            return cls()
        if trace == "off" or trace is None or trace is False:
            return None
        if isinstance(trace, range | Iterable) and not isinstance(trace, str | bytes | dict):
            items = [trace] if isinstance(trace, range) else list(trace)
            if len(items) == 2 and all(_is_int(item) for item in items):
                items = [tuple(items)]  # one range without its list
            return cls(ranges=_ranges(items)) if items else None
        raise ValueError(
            f'trace={trace!r}: use "auto", "off", a list of step ranges such as [(100, 105)], or a TraceSchedule'
        )


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _ranges(ranges: Iterable) -> tuple[tuple[int, int], ...]:
    """Return sorted, disjoint, non-adjacent (first, stop) ranges from pairs or `range` objects. Raises: ValueError."""
    pairs = []
    for item in ranges:
        if isinstance(item, range):
            pair: Sequence = (item.start, item.stop)
        else:
            pair = tuple(item) if isinstance(item, Iterable) else ()
        if len(pair) != 2 or not all(_is_int(v) for v in pair) or not 0 <= pair[0] < pair[1]:
            raise ValueError(f"trace: {item!r} is not a step range; use (first, stop) with 0 <= first < stop")
        pairs.append((int(pair[0]), int(pair[1])))
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(pairs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return tuple(merged)


FOREVER = 1 << 62  # a time that never comes
_NOBODY_LOOKED = 0  # in place of the time of the last boundary: steps since then were not timed


_Range = tuple[int, int | None]  # half-open; None = as many steps as the schedule says


class Action(Enum):
    """An action at a step boundary."""

    NONE = 0
    OPEN = 1  # start the profiler; `Planner.opened` then returns whether to mark this step
    MARK = 2  # the step that begins is one of the open window's steps
    CLOSE = 3  # stop the profiler


@dataclass
class PlannedWindow:
    """One window: the steps it marks, and the time its steps took.

    Attributes:
        first, stop: steps, half-open; `stop` is less than planned where an epoch's end cut it off.
        per_call: batches between two boundaries.
        wanted: the range that the user asked for; None = automatic.
        look: the request that it answers; "" = none.
        began_ns: when the profiler was to start, the GPU's earlier work being done.
        start_s: duration of the call that started it.
        inside_ns: from `began_ns` to the latest boundary.
        inside_calls: calls of the train function in that time.
        marked: the first batch of each marked call.
    """

    index: int
    first: int
    stop: int  # half-open; less than planned where an epoch's end cut it off
    per_call: int = 1  # batches between two boundaries
    wanted: _Range | None = None  # what the user asked for
    look: str = ""  # the request that it answers
    began_ns: int = 0  # when the profiler was to start, the GPU's earlier work being done
    start_s: float = 0.0  # of the call that started it
    inside_ns: int = 0  # from `began_ns` to the latest boundary
    inside_calls: int = 0  # calls of the train function in that time
    marked: list[int] = field(default_factory=list)  # the first batch of each marked call


class Planner:
    """The decisions at each step boundary of a fit: whether a window opens, continues or closes.

    Holds no clock and no profiler: the caller passes the time (nanoseconds, monotonic) and the
    outcome of its decisions. `boundary` is called on the training thread, for the first step after
    each pause and for those from `attends_ns` on: the others cost nothing. `finished` comes from another thread.

    Args:
        schedule: which steps.
        share: the overhead budget: what all windows may cost, a share of the time since the fit began.
        first_cost_s: the assumed cost of the first window; each other one is assumed to cost as much as the last.
        warmup: calls at the start of a window whose steps are not marked, because they bear the
            cost of attaching the profiler to the device.
    """

    SETTLED = 4  # steps timed, and steps of a long epoch over, before an automatic window
    # By this share of its time a fit goes on before its next automatic window: there are a hundred by ten thousand
    # times the time of the first one, so that files, and rows of the manifest, stay few however long it is.
    GROWTH = 0.1
    TIMED = 33  # the latest calls of which the usual time is taken
    LOOK_AHEAD_NS = 2_000_000_000  # how long before a window may open the boundaries are looked at, for that time
    RETRY_NS = 2_000_000_000  # after finding the profiler taken
    # When the first window of a fit comes that is planned long enough to pay for it: its steps have settled, and
    # whoever looks into the tab while it trains soon sees kernel times.
    EARLY_NS = 10_000_000_000

    def __init__(self, schedule: TraceSchedule, share: float, first_cost_s: float, warmup: int = 0):
        self.schedule = schedule
        self.share = share
        self.spent_s = 0.0  # by all windows so far
        self._next_cost_s = first_cost_s
        self.warmup = warmup
        self.window: PlannedWindow | None = None  # the open one
        self.windows_opened = 0
        self.refusals = 0
        self._lock = threading.RLock()  # not held while nothing is due
        self._durations: deque[int] = deque(maxlen=self.TIMED)  # ns, of the latest undisturbed calls
        self._unread_windows: dict[int, PlannedWindow] = {}  # closed windows whose cost is not yet known
        self._wanted_ranges: deque[_Range] = deque()  # still to come, in order
        self._look_request: tuple[str, int] | None = None  # a request and the steps that it wants
        self.look_refused: tuple[str, str] | None = None  # the last such request, and why
        self._claims: list[tuple[int, int]] = []  # steps (half-open) in which other callbacks use the profiler
        self._per_call = 1
        self._epoch_steps: int | None = None
        self._planned_steps: int | None = None  # of the whole fit, while its first window may come early
        self._begin_ns = 0
        self._wake_ns = FOREVER  # before it, nothing needs deciding
        self.attends_ns = 0  # boundaries before it need not be reported
        self._due_ns = self._retry_ns = 0  # an automatic window is paid for; the profiler may be free again
        self._last_ns = self._last_step = self._epoch_first = -1  # -1 = no boundary since the epoch began

    # -- input from the caller -----------------------------------------------------------------

    def begin(
        self,
        now_ns: int,
        steps_per_epoch: int | None = None,
        steps_per_call: int = 1,
        claims: Iterable[tuple[int, int]] = (),
        planned_steps: int | None = None,
    ) -> None:
        """Begin the fit.

        Args:
            now_ns: the time.
            steps_per_epoch: where it is known.
            planned_steps: of all its epochs, where they are known.
            steps_per_call: batches between two boundaries (`steps_per_execution`).
            claims: half-open step ranges in which another callback will use the profiler.
        """
        self._begin_ns = now_ns
        self._epoch_steps = steps_per_epoch
        self._per_call = max(1, steps_per_call)
        self._claims = sorted(claims)
        self._wanted_ranges = deque(self.schedule.ranges)
        if self.schedule.first is not None:
            self._wanted_ranges.append((self.schedule.first, None))
        self._planned_steps = None if self._wanted_ranges else planned_steps
        self._due_ns = self._paid_ns()
        if self._planned_steps is not None:
            self._due_ns = min(self._due_ns, now_ns + self.EARLY_NS)
        self._plan_wake()

    def boundary(self, step: int, now_ns: int) -> Action:
        """Return what to do before batch `step`, as its call begins; the time since the call before is counted.

        Args:
            now_ns: `time.perf_counter_ns`.
        """
        last, window = self._last_ns, self.window
        self._last_ns = now_ns
        self._last_step = step
        if last < 0:  # the first boundary of an epoch
            self._epoch_first = step
        elif last == _NOBODY_LOOKED:  # boundaries were left out: the durations are old
            self._durations.clear()
        elif window is None and not self._unread_windows:  # an undisturbed call
            self._durations.append(now_ns - last)
        if window is not None:
            window.inside_ns = now_ns - window.began_ns
            window.inside_calls += 1
            return self._continue_window(window, step)
        return Action.NONE if now_ns < self._wake_ns else self._try_open(step)

    def skip_boundaries(self) -> None:
        """Note that the next step boundaries will not be reported and do not matter."""
        self._last_ns = _NOBODY_LOOKED

    def opened(self, began_ns: int, start_s: float) -> bool:
        """Note that the profiler runs, by a call of `start_s` at `began_ns`; return whether to mark a step."""
        window = self.window
        assert window is not None
        window.began_ns, window.start_s = began_ns, start_s
        self._planned_steps = None
        self.windows_opened += 1
        if window.look:
            self._look_request = None
        elif window.wanted is not None:
            self._wanted_ranges.popleft()
        return self._continue_window(window, self._last_step) is Action.MARK

    def look(self, request: str, steps: int) -> str | None:
        """Open a window at the next step; return why it cannot, or None. Callable on any thread."""
        with self._lock:
            if self.window is not None or self._unread_windows or self._look_request is not None:
                return "a profiler window is being taken already; ask again in some seconds"
            if self._retry_ns >= FOREVER:
                return "the profiler does not work in this training"
            self._look_request = request, steps
            self._plan_wake()
        return None

    def refused(self, now_ns: int) -> None:
        """Retry later: the profiler was in use when the window was to open."""
        if self._look_request is not None:
            self.look_refused = self._look_request[0], "another profiler is running"
            self._look_request = None
        self.window = None
        self.refusals += 1
        self._retry_ns = now_ns + self.RETRY_NS
        self._plan_wake()

    def release_window(self, now_ns: int) -> None:
        """Release the open window for another profile; retry later."""
        window = self.window
        if window is not None:
            if window.look:
                self.look_refused = window.look, "another profiler was started meanwhile"
            elif window.wanted is not None:
                self._wanted_ranges.appendleft(window.wanted)
            self.windows_opened -= 1
            self.spent_s += window.start_s
            self.refused(now_ns)

    def give_up(self) -> None:
        """Open no more windows: the profiler does not work here."""
        self.window = None
        self._retry_ns = FOREVER
        self._plan_wake()

    def closed(self) -> PlannedWindow | None:
        """Return the window being stopped; `finished` will report its cost."""
        window = self.window
        if window is None:  # refused or given up meanwhile
            return None
        with self._lock:
            self.window = None
            self._unread_windows[window.index] = window
            if window.wanted is not None and self.schedule.every is not None:
                self._wanted_ranges.append((window.first + self.schedule.every, None))
            self._plan_wake()
        return window

    def epoch_ended(self, steps: int | None = None) -> PlannedWindow | None:
        """Return the window that a pause in the steps cuts off: it must be closed.

        Args:
            steps: delivered so far, where the caller knows: an input exhausted without notice makes
                a call that delivers none.
        """
        self._last_ns = -1
        if steps is None:
            steps = self._last_step + self._per_call
        else:
            self._last_step = steps - self._per_call
        window = self.window
        if window is None:
            return None
        window.marked = [step for step in window.marked if step < steps]
        if window.look and not window.marked:  # in the next epoch, then
            self._look_request = window.look, window.stop - window.first
        end = max(steps, window.first)
        if window.wanted is not None and self.schedule.ranges and end < window.stop:
            self._wanted_ranges.appendleft((end, window.stop))
        window.stop = min(window.stop, end)
        return self.closed()

    def finished(self, index: int, stop_s: float, parse_s: float) -> float:
        """Return the whole cost of a closed window in seconds, which the budget bears. Callable on any thread.

        Args:
            index: of the window; 0.0 is returned for one that is not known.
            stop_s: duration of the call that stopped the profiler.
            parse_s: processor time to read the file.
        """
        with self._lock:
            window = self._unread_windows.pop(index, None)
            if window is None:
                return 0.0
            usual_ns = float(np.median(self._durations)) if self._durations else 0
            slowed_s = (window.inside_ns - window.inside_calls * usual_ns) / 1e9
            self._next_cost_s = cost_s = max(window.start_s, slowed_s) + stop_s + parse_s
            self.spent_s += cost_s
            self._due_ns = self._paid_ns()
            if self.schedule.first is None:
                grown_ns = int((window.began_ns - self._begin_ns) * (1 + self.GROWTH))
                self._due_ns = max(self._due_ns, self._begin_ns + grown_ns)
            self._plan_wake()
        return cost_s

    def why_none(self, now_ns: int) -> tuple[str, str] | None:
        """Return why a fit ended without a window, and what to do about it; None where it had one, or that is noted."""
        if self.windows_opened or self._retry_ns >= FOREVER:
            return None
        steps, schedule = self._last_step + self._per_call, self.schedule
        if self.refusals:
            return (
                "another profiler was running whenever a window was due",
                f"end the other profile, or choose steps after it: trace=[({steps}, {steps + 5})]",
            )
        first = min(steps // 2, 100)  # after the first and slowest ones
        stop = max(first + 1, min(first + 5, steps))
        cure = f"trace=[({first}, {stop})] profiles these steps regardless of the overhead budget"
        if schedule.explicit or (schedule.first is not None and schedule.first >= steps):
            return f"the fit ended after {steps} steps, before step {self._wanted_ranges[0][0]} of trace", cure
        elapsed_s, due_s = (now_ns - self._begin_ns) / 1e9, (self._paid_ns() - self._begin_ns) / 1e9
        if self.share > 0 and due_s > elapsed_s:
            return f"the run ended after {elapsed_s:.1f} s, before the first window, due at {due_s:.0f} s", cure
        return "no part of the run left time for a window", cure

    # -- deciding ------------------------------------------------------------------------------

    def _continue_window(self, window: PlannedWindow, step: int) -> Action:
        """Return what to do before a step of an open window: close it, mark the step, or nothing."""
        if step >= window.stop:
            return Action.CLOSE
        if step + self._per_call > window.first:
            window.marked.append(step)
            return Action.MARK
        return Action.NONE

    def _plan_wake(self) -> None:
        """Set the time before which nothing needs deciding."""
        with self._lock:
            self._wake_ns = self._next_decision_ns()
            self.attends_ns = 0 if self.window is not None else self._wake_ns - self.LOOK_AHEAD_NS

    def _next_decision_ns(self) -> int:
        """Return the time (perf ns) before which nothing needs deciding; for named steps each boundary is looked at."""
        schedule = self.schedule
        if self._look_request is not None:
            return 0
        taken = schedule.count is not None and self.windows_opened >= schedule.count
        if taken or ((schedule.ranges or schedule.first is not None) and not self._wanted_ranges):
            return FOREVER
        if schedule.explicit:
            return self._retry_ns
        return FOREVER if self._unread_windows else max(self._retry_ns, self._due_ns)

    def _paid_ns(self) -> int:
        """Return the time from which the budget has room for a window that costs as much as the last one."""
        if self.share <= 0:
            return FOREVER
        return self._begin_ns + int((self.spent_s + self._next_cost_s) / self.share * 1e9)

    def _try_open(self, step: int) -> Action:
        """Return `OPEN` if a window begins before this step, else `NONE`.

        It is the one asked for by `look`, else one that the user named, else an automatic one that is paid for.
        """
        wanted = self._wanted_ranges[0] if self._wanted_ranges and self._look_request is None else None
        request, steps = self._look_request or ("", self.schedule.steps)
        steps = -(-steps // self._per_call) * self._per_call  # in whole calls
        warmup_steps = self.warmup * self._per_call
        if wanted is None:  # as soon as possible: for a request, or automatic
            first = step + warmup_steps
            stop = first + steps
            has_room = not self._unread_windows if request else self._has_room(step, stop) and self._is_paid_for()
            if not has_room or self._claim_in_the_way(first, stop) is not None:
                return Action.NONE
        else:
            first, end = wanted
            length = (end or first + steps) - first
            # a window that was held back (by its budget or another profile) keeps its length
            first = max(first, step)
            while (claim := self._claim_in_the_way(first, first + length)) is not None:
                first = claim[1] + warmup_steps
            stop = first + length
            if first >= step + self._per_call + warmup_steps:  # it begins later
                return Action.NONE
        with self._lock:
            self.window = PlannedWindow(self.windows_opened, first, stop, self._per_call, wanted, request)
            self._plan_wake()
        return Action.OPEN

    def _is_paid_for(self) -> bool:
        """Return whether a window fits the budget by now, or by the end that is planned for the fit.

        Else set a later time.
        """
        planned_s = (self._planned_steps or 0) / self._per_call * float(np.median(self._durations)) / 1e9
        paid_ns = self._paid_ns()
        if paid_ns <= max(self._last_ns, self._begin_ns + planned_s * 1e9):
            return True
        self._planned_steps = None  # from now on by the time that has passed
        self._due_ns = paid_ns
        self._plan_wake()
        return False

    def _claim_in_the_way(self, first: int, stop: int) -> tuple[int, int] | None:
        """Return the first claim (begin, end) that a window of these steps would meet; None if it meets none."""
        lead = self.warmup * self._per_call
        for begin, end in self._claims:
            if first - lead < end and stop >= begin:  # a step between them, in which it can be stopped
                return begin, end
        return None

    def _has_room(self, step: int, stop: int) -> bool:
        """Return whether an automatic window of steps [step, stop) fits here, within the epoch and not at its begin."""
        into, epoch = step - self._epoch_first, self._epoch_steps or FOREVER
        if len(self._durations) < self.SETTLED:
            return False
        if epoch < self.SETTLED + stop - step:  # only a whole short epoch has room
            return into == 0
        return self.SETTLED <= into <= epoch - (stop - step)
