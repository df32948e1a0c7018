"""A training without a step for long: noticed, and described by what its threads and processes do.

All of it runs on the recorder's thread, and nothing on the training thread: that is only looked at.
Where C code holds Python's lock no thread can look; that is said once the lock is free again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import numpy as np

from gpu_util_callback.processes import DEAD, STOPPED, Descendant, descendants, runnable_s
from gpu_util_callback.recorder.process_time import LOOKED_AT, Reading, asks_within, end_of
from gpu_util_callback.recording.manifest import ManifestError, parse
from gpu_util_callback.recording.manifest_facts import Facts, Standstill, StuckFacts
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.segments import SampleBlock, Tables
from gpu_util_callback.redaction import printable
from gpu_util_callback.steps.dispatch import TRACING, callee, is_library, name_of, path_of, saves
from gpu_util_callback.steps.frames import Stack, all_stacks, stack_of
from gpu_util_callback.steps.timeline import Phase, Timeline

PATIENT = 10  # times as long is waited before the first step, in a validation, and while something computes
LATER = 1.15  # times as long, in a job of several ranks
AGAIN = 2  # times the longest pause so far that ended by itself
KEPT_STEPS = 4096  # the newest, of which the usual duration is
FEWEST_TESTS = 20  # steps of a validation, before one of its own is missed
TICK_NS = 5_000_000_000  # of one wait at most counts: this thread was kept from running in the rest
BUSY = 0.2  # of a core: a thread that waits uses a hundredth
BUSY_GPU_PCT = 50.0  # mean since the last step: the GPUs compute, and it is a long step
MOST_ASKS = 0.7  # of the times at which a thread asks for Python's lock while another one holds it
MOST_STACKS, VARIED = 400, 5  # stacks of the training thread, and how many differ where its Python moves
MOST_KEPT, MOST_SAID = 20, 5  # standstills in the manifest, and on the screen
CHILDREN_S = 10.0  # between two looks at the worker processes
MOST_FRAMES = 200
# By the letter of its state in /proc; all others live.
_WORKER_STATES = dict.fromkeys(STOPPED, "stopped") | dict.fromkeys(DEAD, "dead")
OURS = "gpu-util"  # beginning of the names of our threads

# Parts of paths: where batches are made, and what compiles.
_INPUT = (
    "tensorflow/python/ops/script_ops",
    "tensorflow/python/data/",
    "keras/src/trainers/data_adapters/",
    "torch/utils/data/",
    "grain/_src/",
)
_COMPILES = (
    "tensorflow/python/framework/func_graph",
    "jax/_src/compiler",
    "jax/_src/interpreters/mlir",
    "torch/_dynamo/convert_frame",
    "torch/_inductor/codecache",
    "torch/_inductor/async_compile",
    "torch/_inductor/graph",
    "triton/compiler/",
)
_COLLECTIVES = ("torch/distributed/", "jax/experimental/multihost_utils", "tensorflow/python/distribute/")
_KERAS = ("keras/src/trainers/", "keras/src/backend/")
_LEAVES = "keras/src/utils/traceback_utils"
_OURS = "gpu_util_callback/"


class ThreadPlace(NamedTuple):
    """The place of a thread: the innermost line of the program, and the function that it calls."""

    line: str  # "`Data.__getitem__` at load.py:9"; "" = nothing of the program is on the stack
    calls: str  # "get"; "" = nothing of a library
    fetches: bool  # a library that makes batches is on the stack, within that line
    collective: bool  # one that lets processes wait for each other is


def where_is(stack: Stack) -> ThreadPlace:
    """Return where a thread with this stack is: the program's innermost line, and what it calls."""
    within: list[CodeType] = []
    line = ""
    for _, code, number in stack:
        if not is_library(path_of(code)):
            line = f"`{name_of(code)}` at {path_of(code).rpartition('/')[2]}:{number}"
            break
        within.append(code)
    called = callee(code for code in reversed(within) if _OURS not in path_of(code))
    fetches, collective = (any(_lies_in(code, paths) for code in within) for paths in (_INPUT, _COLLECTIVES))
    return ThreadPlace(line, called, fetches, collective)


def _lies_in(code: CodeType, paths: Iterable[str]) -> bool:
    path = path_of(code)
    return any(part in path for part in paths)


def excused(stack: Stack) -> str:
    """Return what a training thread does in which no step is missed: "compiling", "checkpoint", "validation", or ""."""
    for _, code, _ in stack:
        if code.co_name in TRACING or _lies_in(code, _COMPILES):
            return "compiling"
        if saves(code):
            return "checkpoint"
        if code.co_name in ("evaluate", "predict") and _lies_in(code, _KERAS):
            return "validation"
    return ""


def _holds_up(other: Facts) -> bool:
    """Return whether a rank of the job does something for which the steps of the others have to wait."""
    stuck = other.get("step_watch")
    return stuck is not None and bool(stuck.get("doing")) and not stuck["still"]


def first_to_stop(steps: int, others: Iterable[Facts]) -> int | None:
    """Return the rank that made fewest steps; None where no other rank made fewer than this one.

    Args:
        steps: of this rank.
        others: manifests of the job's other ranks; those without a watch on their steps are left out.
    """
    behind = [
        (other["step_watch"].get("steps", steps), other.get("rank") or 0) for other in others if other.get("step_watch")
    ]
    return min(behind)[1] if behind and min(behind)[0] < steps else None


def others_of_job(log_dir: str, job: str | None, rank: int) -> list[Facts]:
    """Return the newest live manifest of each other rank of a job, from a local log directory. Raises: OSError.

    Args:
        job: name of the job; None = no rank can be matched.
        rank: of this process.
    """
    newest: dict[int, Facts] = {}
    for path in sorted(Path(log_dir).glob(f"plugins/{PLUGIN_NAME}/*/manifest.json")):
        try:
            facts, _ = parse(path.read_bytes())
        except ManifestError:
            continue
        other = facts.get("rank") or 0
        if job and facts.get("job") == job and other != rank and facts["status"] == "live":
            newest[other] = facts
    return list(newest.values())


@dataclass
class _Work:
    """CPU time that was wanted so far, in s: by the training thread, other threads, and each worker process.

    Attributes:
        at_ns: when it was read, perf ns.
        workers_s: by process id.
    """

    at_ns: int
    thread_s: float
    others_s: float
    workers_s: dict[int, float]

    @classmethod
    def now(cls, thread: threading.Thread) -> _Work:
        """Return the CPU seconds so far of the training thread, other threads (without ours) and workers."""
        pid, ours = os.getpid(), [each.native_id for each in threading.enumerate() if each.name.startswith(OURS)]
        thread_s = runnable_s(pid, [thread.native_id])
        others_s = runnable_s(pid) - thread_s - runnable_s(pid, ours)
        workers_s = {worker.pid: runnable_s(worker.pid) for worker in descendants() or ()}
        return cls(time.perf_counter_ns(), thread_s, others_s, workers_s)

    def since(self, before: _Work) -> tuple[float, float]:
        """Return how many cores the training thread wanted on average since `before`, and how many all else did."""
        seconds = max(1e-9, (self.at_ns - before.at_ns) / 1e9)
        both = self.workers_s.keys() & before.workers_s.keys()
        in_workers = sum(max(0.0, self.workers_s[pid] - before.workers_s[pid]) for pid in both)
        elsewhere = max(0.0, self.others_s - before.others_s) + in_workers
        return (self.thread_s - before.thread_s) / seconds, elsewhere / seconds


@dataclass
class StuckWatch:
    """Notices that no step has come for long, by the moments that the timeline has seen.

    Args:
        timeline: of the training thread.
        thread: returns that thread.
        fit: returns the code of the running `fit`; None in a loop.
        offset_ns: from `time.perf_counter_ns` to the recording's clock.
        limits: thresholds `no_step_s` and `times_p99` of the cause "stuck".
        keep_file: takes the name and the content of a file for the recording's folder.
        steps: returns the number of training steps so far.
        gpus: returns the indices of the GPUs in use.
        ranks: returns how many processes the job has; one that waits for others may compute while it does.
        others: returns the manifests of the job's other ranks.

    Attributes:
        doing: what the training thread does, where no step is missed meanwhile.
    """

    timeline: Timeline
    thread: Callable[[], threading.Thread]
    fit: Callable[[], CodeType | None]
    offset_ns: int
    limits: Mapping[str, float]
    keep_file: Callable[[str, bytes], None]
    steps: Callable[[], int]
    gpus: Callable[[], list[int]] = field(default=lambda: [])
    ranks: Callable[[], int] = field(default=lambda: 1)
    others: Callable[[], list[Facts]] = field(default=lambda: [])

    def __post_init__(self) -> None:
        self.doing = ""
        self._standstills: list[Standstill] = []
        self._standstill_count, self._ended_s = 0, 0.0  # so far; seconds of those that ended
        self._open_standstill: Standstill | None = None  # the one under way
        # int64[calls] ns, the newest
        self._durations = {name: np.zeros(0, np.int64) for name in ("steps", "validation_steps")}
        # perf ns: last progress; begin of the pause; last look
        self._seen_ns = self._since_ns = self._looked_ns = time.perf_counter_ns()
        self._idle_ns = self._longest_ns = 0  # length of the pause so far, and of the longest one that ended
        self._patience = 1  # times the limit that is waited
        self._work_before: _Work | None = None  # as the pause came near its limit
        self._stacks: Counter[tuple] = Counter()  # of the training thread since, with their samples
        self._usage: deque[tuple[int, int, float]] = deque(maxlen=4096)  # GPU, ns, %
        self._workers: dict[int, Descendant] = {}  # by process id, as long as steps came
        self._workers_due_ns = 0

    # ---- what is known of the usual steps ----------------------------------------------------

    def add(self, tables: Tables, samples: Iterable[SampleBlock]) -> None:
        """Add new rows of steps, and new samples.

        The newest durations of calls (ns, without compilation) and GPU utilizations (index, ns, %) are kept.
        """
        for name, newest in self._durations.items():
            rows = tables.get(name)
            if rows is not None:
                calls_ns = rows["duration_ns"] * rows.get("batches", 1) - rows.get("compile_ns", 0)
                self._durations[name] = np.concatenate([newest, calls_ns])[-KEPT_STEPS:]
        for block in samples:
            gpu, _, part = block.group.removeprefix("gpu").partition("/")
            if gpu.isdigit() and part in ("", "utilization") and "utilization_pct" in block.columns:
                used = block.values[:, block.columns.index("utilization_pct")]
                self._usage.extend((int(gpu), int(at), float(pct)) for at, pct in zip(block.time_ns, used, strict=True))

    @property
    def _usual_ns(self) -> np.ndarray:
        return self._durations["validation_steps" if self.timeline.in_test else "steps"]

    @property
    def limit_ns(self) -> int:
        """Time without a step (ns) after which the training stands still, unless something computes."""
        usual = self._usual_ns
        least_ns = 1e9 * self.limits["no_step_s"]
        if not len(usual):  # before the first step: set-up and compilation
            return int(PATIENT * least_ns)
        times_usual = self.limits["times_p99"] * float(np.percentile(usual, 99))
        # One step of a validation may stand for all of it: a metric over the whole set, generated text.
        patience = PATIENT if self.timeline.in_test else 1
        return int(max(patience * least_ns, times_usual, AGAIN * self._longest_ns))

    # ---- each quarter of a second ------------------------------------------------------------

    def look(self, before: Reading | None, after: Reading | None, pause_s: float, stopped: bool) -> Standstill | None:
        """Return a standstill that begins or ends now, if one does.

        Args:
            before, after: readings around this thread's last wait; None where the system has none.
            pause_s: how long it meant to wait.
            stopped: whether the process was stopped in it.
        """
        now, progress = time.perf_counter_ns(), self._progress()
        passed_ns, self._looked_ns = now - self._looked_ns, now
        if not stopped:
            locked = self._lock_held(before, after, pause_s) if self._open_standstill is None else None
            if locked is not None:  # it is over already
                self._seen_ns = self._since_ns = progress
                self._idle_ns = 0
                return locked
            self._idle_ns += min(passed_ns, TICK_NS)
        if progress != self._seen_ns:  # a step has come
            return self._note_progress(progress)
        return self._look_for_standstill() if self._open_standstill is None else None

    def _progress(self) -> int:
        done = tuple(self.timeline.device_done.values())  # on other threads, of calls that are queued
        return max(self.timeline.latest(), max(done, default=0))

    def _note_progress(self, seen: int) -> Standstill | None:
        """Begin to wait for the next step, after one was seen (perf ns).

        Return the standstill that it ended, or None.
        """
        ended, self._open_standstill = self._open_standstill, None
        if ended is not None:
            ended["end_ns"] = seen + self.offset_ns
            self._set_duration(ended)
        if len(self._usual_ns):  # setting up is no pause in between
            self._longest_ns = max(self._longest_ns, self._idle_ns)
        self._restart(seen)
        self.doing = ""
        if self._looked_ns >= self._workers_due_ns:  # now and then: one that has died may have been replaced
            self._workers = {process.pid: process for process in descendants() or ()}
            self._workers_due_ns = self._looked_ns + int(1e9 * CHILDREN_S)
        return ended

    def _restart(self, since: int) -> None:
        """Count the time without a step from a moment on."""
        self._seen_ns = self._progress()
        self._since_ns, self._idle_ns, self._patience, self._work_before = since, 0, 1, None
        self._stacks.clear()

    def _look_for_standstill(self) -> Standstill | None:
        """Return a standstill that begins to be one, None while the pause is short or has an excuse.

        Where something still computes, the next look is a limit later.
        """
        # From a quarter of the limit on, so that there are samples by then.
        if 4 * self._idle_ns < 1e9 * self.limits["no_step_s"]:
            return None
        limit_ns = self.limit_ns
        if 4 * self._idle_ns < limit_ns:
            return None
        stack = stack_of(self.thread().ident or 0, self.fit(), MOST_FRAMES)
        self.doing = self._excuse(stack)
        if self.doing:  # a pause that has an excuse does not count
            self._restart(self._looked_ns)
            return None
        if self._work_before is None:  # the first look in this pause
            self._work_before = _Work.now(self.thread())
        if len(self._stacks) < MOST_STACKS:
            # what the training thread does, to see whether it moves
            self._stacks[tuple((code, line) for _, code, line in stack)] += 1
        # A rank that waits for others lets these say first what they do.
        if self._idle_ns < self._patience * limit_ns * (LATER if self.ranks() > 1 else 1):
            return None
        before, self._work_before = self._work_before, _Work.now(self.thread())
        moves, busy = self._computes(before, self._work_before)
        self._stacks.clear()
        others = self.others() if self.ranks() > 1 else []
        # it, or a rank it waits for, is at work
        if moves or (busy and self._patience < PATIENT) or any(map(_holds_up, others)):
            self._patience += 1
            self.doing = "computing" if moves or busy else ""
            return None
        standstill = self._begin_standstill(stack, limit_ns)
        first = first_to_stop(self.steps(), others)
        if first is not None:
            standstill["first_rank"] = first
        return standstill

    def _excuse(self, stack: Stack) -> str:
        """Return what explains a pause, such as "validation" or "compiling"; "" = nothing.

        Args:
            stack: of the training thread.
        """
        excuse = self.timeline.inside or excused(stack)
        if not excuse and stack and _LEAVES in path_of(stack[0][1]):  # frees what a call has made, perhaps a pipeline
            return self.doing
        if not self.timeline.in_test:  # training: any excuse counts
            return excuse
        # A validation's steps are watched as well, once it is known how long they take.
        if len(self._durations["validation_steps"]) < FEWEST_TESTS:
            return "validation"
        return "" if excuse == "validation" else excuse

    def _computes(self, before: _Work, now: _Work) -> tuple[bool, bool]:
        """Return whether the training thread's Python moves, and whether anything else (GPUs, workers) is at work."""
        in_thread, elsewhere = now.since(before)
        most_samples = max(self._stacks.values(), default=0)
        varied = len(self._stacks) >= VARIED and 2 * most_samples < self._stacks.total()
        moves = in_thread >= BUSY and varied
        if self.ranks() > 1:  # waiting for the others keeps a core and a GPU busy
            return moves, False
        busy_gpu = (self._gpu_pct() or 0.0) >= BUSY_GPU_PCT
        return moves, busy_gpu or in_thread + elsewhere >= BUSY

    def _gpu_pct(self) -> float | None:
        """Return how active the GPUs in use were since the last step, mean %; None where none was sampled."""
        gpus, since = self.gpus(), self._since_ns + self.offset_ns
        values = [use for gpu, at, use in tuple(self._usage) if at > since and gpu in gpus and use == use]
        return float(np.mean(values)) if values else None

    # ---- a standstill ------------------------------------------------------------------------

    def _begin_standstill(self, stack: Stack, limit_ns: int) -> Standstill:
        """Return the facts of a standstill that begins, after keeping the stacks of all threads in a file.

        Args:
            stack: of the training thread.
            limit_ns: that the pause has exceeded.
        """
        stacks = all_stacks(MOST_FRAMES)
        standstill = self._first_facts(self._since_ns, limit_ns)
        self._place_in(standstill, stack, stacks)
        standstill["workers"] = self._states_of_workers()
        use = self._gpu_pct()
        if use is not None:
            standstill["gpu_active_pct"] = round(use, 1)
        if self._standstill_count < MOST_KEPT:
            standstill["stacks"] = f"stuck-{self._standstill_count + 1}.txt"
            self.keep_file(standstill["stacks"], self._as_text(stacks).encode(errors="replace"))
        self._open_standstill = standstill
        self._keep(standstill)
        return standstill

    def _first_facts(self, since: int, limit_ns: int) -> Standstill:
        """Return when a standstill began, how long it is, and how long a step usually takes.

        Args:
            since: perf ns.
            limit_ns: that the pause has exceeded.
        """
        usual = self._usual_ns
        facts: Standstill = {
            "step": self.steps(),
            "thread": "training",
            "start_ns": since + self.offset_ns,
            "seconds": round(self._idle_ns / 1e9, 3),
            "limit_s": round(limit_ns / 1e9, 3),
            "validation": self.timeline.in_test,
        }
        if len(usual):
            facts["step_ms"] = round(float(np.median(usual)) / 1e6, 3)
        return facts

    def _keep(self, found: Standstill) -> None:
        self._standstill_count += 1
        del self._standstills[MOST_KEPT - 1 :]
        self._standstills.append(found)

    def _place_in(self, standstill: Standstill, stack: Stack, stacks: Mapping[int, Stack]) -> None:
        """Set where the program waits: in the training thread, or in one that makes its batches.

        Args:
            standstill: the facts that are extended, by `place`, `calls`, `thread` and `collective`.
            stack: of the training thread, up to the fit.
            stacks: of all threads, by identifier.
        """
        fit = self.fit()
        in_fit = bool(stack) and stack[-1][1] is fit
        training = where_is(stack[:-1] if in_fit else stack)
        others = Counter(
            where_is(other)
            for thread, other in stacks.items()
            if thread != self.thread().ident and any(_lies_in(code, _INPUT) for _, code, _ in other)
        )
        inputs = [place for place, _ in others.most_common() if place.line]
        # the training thread waits for a batch, or is in no line of the program
        if inputs and (not training.line or training.fetches):
            training = inputs[0]._replace(fetches=True)
        elif not training.line:  # the program's line may lie outside the fit
            training = where_is(stacks.get(self.thread().ident or 0, []))
        standstill["place"], standstill["calls"] = training.line, training.calls
        standstill["thread"] = "input" if training.fetches else "training"
        standstill["collective"] = training.collective

    def _states_of_workers(self) -> dict[str, int]:
        """Return the number of worker processes by state: "alive", "stopped", "dead" (since the last step).

        0 is left out.
        """
        state_of = {process.pid: process.state for process in descendants() or ()}
        states = Counter(_WORKER_STATES.get(state, "alive") for state in state_of.values())
        states["dead"] += len(self._workers.keys() - state_of.keys())
        return {state: count for state, count in states.items() if count}

    def _as_text(self, stacks: Mapping[int, Stack]) -> str:
        """Return the stacks of all threads but ours as text, the training thread's first, without secrets.

        Names are left out where they are redacted.
        """
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        training = self.thread().ident
        parts = []
        for thread in sorted(stacks, key=lambda each: each != training):
            name = names.get(thread, "a thread of a library")
            if name.startswith(OURS):
                continue
            title = f"training thread ({name})" if thread == training else name
            lines = [f'  File "{path_of(code)}", line {line}, in {name_of(code)}' for _, code, line in stacks[thread]]
            parts.append("\n".join([f"{title}, the innermost call first:", *lines]))
        return printable("\n\n".join(parts)) + "\n"

    def _lock_held(self, before: Reading | None, after: Reading | None, pause_s: float) -> Standstill | None:
        """Return the standstill that ends now because C code held Python's lock, and computed nothing; None = none.

        Args:
            before, after: readings around this thread's last wait; None where the system has none.
            pause_s: how long it meant to wait; the rest of the time it was kept from running.
        """
        if before is None or after is None:
            return None
        took_ns, cpu_ns = after.perf_ns - before.perf_ns, after.cpu_ns - before.cpu_ns
        late_ns = took_ns - round(1e9 * pause_s)
        # short, or something computed
        if late_ns < 1e9 * self.limits["no_step_s"] or late_ns < self.limit_ns or cpu_ns >= BUSY * took_ns:
            return None
        # A thread that waits for the lock asks for it again and again; one without a core does not.
        if after.waits - before.waits < MOST_ASKS * asks_within(late_ns):
            return None
        if self._ran_between(after.perf_ns - late_ns, after.perf_ns):  # the training thread had the lock in it
            return None
        stacks = all_stacks(MOST_FRAMES)
        stack = stack_of(self.thread().ident or 0, self.fit(), MOST_FRAMES)
        start = after.perf_ns - late_ns
        standstill = self._first_facts(start, self.limit_ns)
        if self._progress() < start + late_ns // 2:  # the training thread has not gone on since
            self._place_in(standstill, stack, stacks)
        else:  # the thread has gone on since, to who knows where
            standstill["place"], standstill["calls"] = "", self._long_phase(start, after.perf_ns)
        standstill["thread"], standstill["end_ns"] = "lock", after.perf_ns + self.offset_ns
        self._keep(standstill)
        self._set_duration(standstill)
        return standstill

    def _ran_between(self, start: int, end: int) -> bool:
        """Return whether the training thread has written anything in the middle of this time."""
        newest = list(self.timeline.queue)[-LOOKED_AT:]
        tenth = (end - start) // 10
        return any(start + tenth < end_of(entry) < end - tenth for entry in newest)

    def _long_phase(self, start: int, end: int) -> str:
        """Return the name of a hook or phase that took most of this time; "" where none is seen."""
        newest = list(self.timeline.queue)[-LOOKED_AT:]
        long = (item for item in reversed(newest) if isinstance(item, Phase) and item.kind != "epoch")
        return next((item.name for item in long if min(item.end, end) - max(item.start, start) > (end - start) / 2), "")

    def _set_duration(self, ended: Standstill) -> None:
        """Set the duration of a standstill that ended, without times in which the process was stopped; sum it up."""
        stood_ns = max(0, ended["end_ns"] - ended["start_ns"])
        if ended["thread"] != "lock":  # without times in which the process was stopped
            stood_ns = min(stood_ns, self._idle_ns)
        ended["seconds"] = round(stood_ns / 1e9, 3)
        self._ended_s += ended["seconds"]

    def close(self, ended_ns: int, interrupted: bool) -> Standstill | None:
        """End with the training, at a time on the recording's clock; return a standstill that was over before, or None.

        Args:
            interrupted: the training was left in the standstill, which stays open.
        """
        standstill = self._open_standstill
        if standstill is None:
            return None
        if not interrupted:  # by itself: steps went on, or none was to come
            return self._note_progress(max(self._since_ns, min(self._progress(), ended_ns - self.offset_ns)))
        standstill["seconds"] = round(min(self._idle_ns, max(0, ended_ns - standstill["start_ns"])) / 1e9, 3)
        return None

    def pause(self) -> None:
        """Leave out the time up to now: nothing trains between two fits."""
        self._looked_ns = time.perf_counter_ns()
        if self._open_standstill is not None:
            self._note_progress(self._looked_ns)
        self._restart(self._looked_ns)

    # ---- what is said of it ------------------------------------------------------------------

    @property
    def worth_a_line(self) -> bool:
        """Return whether the newest standstill is printed: one that comes again and again is known."""
        return self._standstill_count <= MOST_SAID

    def facts(self) -> StuckFacts:
        """Return the manifest's `step_watch`.

        Returns: `seconds` stood still in all, `times`, the newest `standstills`, `still` (one is under way),
        `steps` so far,
            `doing` (what the thread does in which no step is missed).
        """
        now = self._open_standstill
        if now is not None:
            now["seconds"] = round(self._idle_ns / 1e9, 3)
        return {
            "seconds": round(self._ended_s + (now["seconds"] if now is not None else 0.0), 3),
            "times": self._standstill_count,
            "standstills": [{**standstill} for standstill in self._standstills],
            "still": now is not None,
            "steps": self.steps(),
            "doing": self.doing or ("validation" if self.timeline.in_test else self.timeline.inside),
        }
