"""The recorder: writes a fit's recording from inside the training process, in the background."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpu_util_callback import daemon
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.job import (
    hashed_arguments,
    job_facts,
    program_to_try,
    ray_context,
    ray_gives_no_gpu,
    scheduler_facts,
    script_name,
    user_name,
)
from gpu_util_callback.profiling.profiler_windows import SOURCE, ProfilerWindows, requested
from gpu_util_callback.recorder.intake import GpuSamples, Intake, PipelineReadings
from gpu_util_callback.recorder.memory_watch import MemoryWatch
from gpu_util_callback.recorder.messages import debug, drain, drain_calls, note, off, say, verdict, warn
from gpu_util_callback.recorder.model_work import BatchSizes, ModelWork
from gpu_util_callback.recorder.outputs import FLUSH_S, Outputs, WritingEvents
from gpu_util_callback.recorder.process_time import ProcessTime, Reading, reading, stop_between
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recorder.stuck_watch import StuckWatch, others_of_job
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import Facts, Standstill, Unavailable
from gpu_util_callback.recording.schema import FIT_GAP, STOPPED
from gpu_util_callback.recording.segments import Tables
from gpu_util_callback.redaction import error_text, printable
from gpu_util_callback.steps.dispatch import DispatchWatch
from gpu_util_callback.steps.frames import FitWatch
from gpu_util_callback.steps.rows import seen_dims
from gpu_util_callback.steps.timeline import Phase, Timeline
from gpu_util_callback.words import stood_still

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import RunReport
    from gpu_util_callback.diagnosis.run_reports import Recorded
    from gpu_util_callback.report.notebook import Summary

CLOSE_S = 5.0  # how long the end of a fit waits for the recording's last rows
KNOWN_S = 0.5  # the same where writing is known to fail or hang
# How long the end of the process waits for recordings that are still being written. Storage that
# hangs is waited for no longer than what is left of `_patience_s`, or this long for an answer.
EXIT_S = 10.0
ANSWER_S = 2.0
LATE_S = 0.5  # a recorder that reaches the end this late writes its rows before all else
OTHERS_S = 2.0  # how long the manifests of a job's other ranks are waited for
LOOK_S = 0.25  # how often to check whether the fit was left by an exception
WINDOWS_S = 30.0  # how long the end of a recording waits for windows to be read
# Fits of one callback up to this long share a recording with the next that begins this soon.
SERIES_FIT_S = 10.0
SERIES_GAP_S = 60.0
NEWS_S = 5.0  # a fit or a series this long deserves a verdict while others may follow
IDLE_FIT_S = 2.0  # how long a series waits for its next fit; then the recording is closed
IDLE_S = 60.0  # where the fit cannot be watched: sampling stops after this long without a step

_process = ProcessTime()
# Total time that the fits and the end of this process wait for a storage that does not answer.
_patience_s = CLOSE_S
_active: dict[int, Recorder] = {}  # by their ids: listing a dictionary's values needs no lock
_fits: dict[str, int] = {}  # log_dir -> fits of this process so far
# The newest ended recordings, which another fit may continue; older ones free their memory.
_ended: deque[weakref.ref[Recorder]] = deque()
KEPT = 2


class State(Enum):
    """State of a recorder; the value of the last two is the status of the recording."""

    RECORDING = "recording"
    LEAVING = "leaving"  # a fit of a series has ended
    IDLE = "idle"  # another fit may follow
    ACQUIRED = "acquired"  # another fit is about to follow
    ENDED = "ended"
    INTERRUPTED = "interrupted"


BETWEEN_FITS = State.LEAVING, State.IDLE, State.ACQUIRED


@dataclass(eq=False)
class Recorder:
    """Owner of a recording: writer, sampler, scalars, diagnosis and the one thread that runs them.

    The training thread only appends to `timeline`. Nothing raised in here reaches it: a source
    that fails is reported once, switched off, and listed in the recording's `unavailable`.

    Args:
        settings: the user's settings.
        adapter: the framework's.
        facts: what the caller knows of the fit, by the manifest's names.
        clock: the recording's.
        timeline: of the training thread.
        on_over: removes all wrappers; called at the end of each fit.

    Attributes:
        given: digest of the data of the newest fit; None = not known.
        kind: of the newest fit: a fit of another kind continues no series.
        trained_by: the thread that trains.
        run: the report of the rows diagnosed last; None before the first.
        recorded: what `run` rests on.
    """

    settings: Settings
    adapter: Adapter
    facts: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    timeline: Timeline = field(default_factory=Timeline)
    on_over: Callable[[], None] = field(default=lambda: None)  # puts all wrappers back

    def __post_init__(self) -> None:
        self._ray = ray_context()  # Ray answers on the training thread
        if self._ray is not None:
            ray_home = self._ray.home(self.settings.log_dir)
            self.settings = replace(self.settings, log_dir=ray_home)
        self.watch = FitWatch(None)
        self._enter(State.RECORDING)
        self.unavailable: list[Unavailable] = []
        self._outputs = Outputs(
            self.settings,
            self.clock,
            self.fail,
            self.recovered,
            WritingEvents(self._files_closed, self._write_failed, lambda: self.end("interrupted", 0.0)),
        )
        self._reported: set[str] = set()
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._wake = threading.Event()  # set with `_stop`, and where a verdict is wanted
        self._judged = threading.Event()  # all rows are diagnosed, or those wanted just now
        self._closed = threading.Event()  # the files are
        self._released = threading.Event()  # nobody has to wait for the files (any longer)
        self.run: RunReport | None = None  # the report of the rows diagnosed last
        self.recorded: Recorded | None = None  # what it rests on
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.trained_by = threading.current_thread()  # `start` corrects it
        self._started_ns = 0
        self._ended_ns = 0
        self._end_called = 0.0  # `time.monotonic` of the first `end`
        self._gpus = GpuSamples(self.clock, self.fail, ray_gives_no_gpu())
        self.intake = Intake(self.timeline, self._gpus, self.fail, self._lose_rows)
        # A file of stacks holds the names of folders.
        self._keeps_stacks = self.settings.memory_stacks and not self.settings.redact
        keep = self._outputs.keep_file if self._keeps_stacks else None
        self.memory = MemoryWatch(self.adapter, lambda: self.intake.steps, keep)
        self.work = ModelWork(self.adapter, self.settings.flops_per_sample)
        self._stages = PipelineReadings(self.adapter, self.clock, self.fail)
        self.fits = 1  # one, or the number in a series so far
        self.given: bytes | None = None  # digest of the data of the newest fit; None = not known
        self.kind: tuple[object, ...] = ()  # of the newest fit: a fit of another kind continues no series
        self._index = 0  # of the newest fit, among those of its log_dir
        self.begins_at: dict[str, int | None] = {}  # where in the training the first fit begins
        self._fit_started_ns = 0  # of the newest fit
        self._idle_until = 0.0  # `time.monotonic`
        self._between_ns = 0  # of all times between fits
        self._cpu_s = 0.0  # of the threads before this one
        self._unsaid = False  # a fit of a series has ended without a verdict
        self._said_s = 0.0  # training time covered by the last verdict
        self._compiled = (0, 0)  # times and ns in the account of the process
        self._skipped = 0  # steps without a row that are counted
        self.windows: ProfilerWindows | None = None  # None = no profiler windows are wanted
        self._look_id = ""  # the request for a window that is not answered yet
        self._inspects_input = True  # until looking at it fails
        self.dispatch: DispatchWatch | None = None  # what the steps do
        self._stuck: StuckWatch | None = None  # from where the recording is open on

    # ---- the training thread -------------------------------------------------------------

    def start(self, watch: FitWatch) -> None:
        """Begin to record. Returns at once: anything slow runs on the recorder's thread."""
        self.watch = watch
        self.trained_by = threading.current_thread()
        self._index = _fits[self._key] = _fits.get(self._key, -1) + 1
        self.facts["fit_index"] = self._index
        self.intake.begin(self.adapter, self.clock.offset_ns)
        thread = threading.Thread(target=self._work, name="gpu-util-recorder", daemon=True)
        thread.start()  # raises where the process may have no more threads
        self._thread = thread
        _active[id(self)] = self
        # From here on time counts; our set-up does not.
        self._started_ns = self._fit_started_ns = self.clock.now()
        self.facts["started_ns"] = self._started_ns
        _process.begin(self._started_ns - self.clock.offset_ns, self.given)
        self._begun.set()

    def end(self, status: str, deadline_s: float = CLOSE_S) -> None:
        """Close the recording: write the rest, by a deadline. May be called more than once.

        Args:
            status: "ended", or "interrupted", which ends where the training was last seen.
            deadline_s: how long the caller waits; 0 = not at all.
        """
        if self.in_child:  # the parent records
            return
        first = False
        try:
            with self._lock:
                first = not self.off
                between = self._state in BETWEEN_FITS
                if first:
                    self._enter(State.ENDED if between else State(status))  # between fits nothing was interrupted
                    self._end_called = time.monotonic()
                    if not between:
                        self._ended_ns = self._end_of_fit(status)
                        self._unsaid = False  # the caller prints it, or `_work`
            if first and not between:  # a fit that is left already has restored its wrappers
                self._leave_fit()
        finally:  # also when Ctrl+C is pressed in here: nothing else would end the thread
            if first:
                self._judged.clear()
                self._stop.set()
                self._wake.set()
                self._begun.set()  # Ctrl+C may have come before `start` was done
        thread = self._thread
        if deadline_s and thread is not None and thread is not threading.current_thread():
            self._await_end(deadline_s, first)

    def _await_end(self, deadline_s: float, first: bool) -> None:
        """Wait for the verdict, and until the end is written, or known to be impossible for now.

        All waits of this process share `_patience_s`: what is waited in vain here is taken off it.

        Args:
            deadline_s: the longest wait.
            first: this call of `end` ended the recording: it may print that the wait was given up.
        """
        global _patience_s
        begun_s = time.monotonic()
        longest_wait_s = min(deadline_s, max(_patience_s, KNOWN_S))
        self._judged.wait(longest_wait_s)
        if _storage_hangs() or self._outputs.failing:  # waiting is known to be of little use
            longest_wait_s = min(longest_wait_s, _patience_s, KNOWN_S)
        left_s = begun_s + longest_wait_s - time.monotonic()
        if not self._released.wait(max(left_s, 0.0)):
            waited_s = time.monotonic() - begun_s
            _patience_s = max(_patience_s - waited_s, 0.0)
            worth_it = waited_s >= KNOWN_S and not self._outputs.failing
            if first and worth_it and self.settings.report:
                say(
                    f"the recording's end is still being written to {self.settings.log_dir} "
                    f"after {waited_s:.1f} s; continuing without waiting"
                )
            self._released.set()  # once is enough

    def _write_failed(self) -> None:
        """Handle a failed write. After a fit's end it is retried while the program continues."""
        if self._stop.is_set():
            self._released.set()

    def _files_closed(self) -> None:
        """Note that nothing more will be written."""
        self._closed.set()
        self._released.set()
        _active.pop(id(self), None)
        self._forget_others()

    def finish(self, deadline_s: float) -> None:
        """Wait at the end of the process for pending writes, the last attempt included, at most `deadline_s`."""
        global _patience_s
        self._outputs.in_a_hurry.set()
        self.end("interrupted", deadline_s=0)
        most_s = KNOWN_S if self._outputs.failing else deadline_s
        begun, waited_s = time.monotonic(), 0.0
        while not self._closed.is_set():
            waited_s = time.monotonic() - begun
            # too late, or the storage does not answer
            if waited_s > most_s or self._outputs.unanswered_s > max(_patience_s, ANSWER_S):
                break
            self._closed.wait(0.1)
        if not self._closed.is_set():
            _patience_s = max(_patience_s - waited_s, 0.0)
            note(
                f"the recording's end could not be written to {self.settings.log_dir} before the "
                "process ended; it is missing"
            )
        elif self._thread is not None:
            self._thread.join(KNOWN_S)  # it may have a verdict to print
        _active.pop(id(self), None)  # once is enough

    # ---- a series of short fits ------------------------------------------------------------

    def idle(self) -> None:
        """End a fit of a series. The recording stays open for `IDLE_FIT_S`, for the next fit."""
        if self.in_child:
            return
        with self._lock:
            if self.off:
                return
            self._ended_ns = self._end_of_fit("ended")
            self._enter(State.LEAVING)
            self._unsaid = True
        self._leave_fit()
        with self._lock:
            self._idle_until = time.monotonic() + IDLE_FIT_S
            if self._state is State.LEAVING:  # somebody may have ended it in between
                self._enter(State.IDLE)

    def continues(self, kind: tuple[object, ...]) -> bool:
        """Return whether a fit that begins now belongs to this series; if so, the recording is acquired for it.

        Args:
            kind: what the fits of a series have in common; an entry of None is equal to any.
        """
        alike = all(a == b or a is None or b is None for a, b in zip(self.kind, kind, strict=True))
        return alike and self._may_continue() and self.acquire()

    def acquire(self) -> bool:
        """Acquire the recording of a series for a fit that begins; False = it cannot continue.

        A closed recording is opened again. `continue_` or `end` has to follow.
        """
        with self._lock:
            if self._state is State.IDLE:  # the files are open still
                self._enter(State.ACQUIRED)
                return True
            if self._state is not State.ENDED:  # a fit is under way, or was interrupted
                return False
        self._closed.wait(0 if _storage_hangs() else KNOWN_S)  # it may be closing just now
        with self._lock:
            outputs = self._outputs
            if not (self._closed.is_set() and outputs.sealed and outputs.recording):  # not written to its end
                return False
            for event in (self._stop, self._wake, self._judged, self._closed, self._released):
                event.clear()
        thread = threading.Thread(target=self._work, name="gpu-util-recorder", daemon=True)
        thread.start()
        self._enter(State.ACQUIRED)
        self._thread = thread
        _active[id(self)] = self
        return True

    def look_at_input_soon(self) -> None:
        """Inspect an input that a loop has just begun with, before it calls much of its Python."""
        threading.Thread(target=self._look_at_input, name="gpu-util-input", daemon=True).start()

    def continue_(self, watch: FitWatch) -> None:
        """Begin the next fit of a series; after `acquire`, when everything is installed.

        The time between is a pause.
        """
        self.trained_by = threading.current_thread()
        if self.fits == 1:  # only a series has a row for each fit: the first one's is due now
            self._mark_fit()
        self.fits += 1
        self.facts["fits"] = self.fits
        self._index = _fits[self._key] = _fits[self._key] + 1
        now = self.clock.now()
        self.intake.pauses.append((self._ended_ns, now))
        self._between_ns += now - self._ended_ns
        self._phase(FIT_GAP, "", self._ended_ns, now)
        self.watch = watch
        self._fit_started_ns = now
        with self._lock:
            self._ended_ns = 0
            if self._state is State.ACQUIRED:  # nobody has ended it in between
                self._enter(State.RECORDING)
        _process.begin(now - self.clock.offset_ns, self.given)

    def _may_continue(self) -> bool:
        """Return whether a fit that begins now may continue this recording, as far as known here.

        The last fit must have been a short one that ended a moment ago, in a job of one process: workers of a job
        have to agree on what is one recording, which timing cannot settle.
        """
        is_between_fits = self._thread is not None and bool(self._ended_ns) and self._outputs.recording
        if not is_between_fits or self.in_child:
            return False
        alone = int(self.facts.get("world_size") or 1) == 1
        is_newest = _fits.get(self._key) == self._index  # no fit of another callback came in between
        ended_just_now = self.clock.now() - self._ended_ns < SERIES_GAP_S * 1e9
        was_short = self._ended_ns - self._fit_started_ns < SERIES_FIT_S * 1e9
        return alone and is_newest and ended_just_now and was_short

    @property
    def was_short(self) -> bool:
        """Return whether the current fit is one of a short series that needs no verdict yet."""
        return self.fits > 1 and self.clock.now() - self._fit_started_ns < NEWS_S * 1e9

    def idles_elsewhere(self, log_dir: str) -> bool:
        """Return whether this is a series between two fits that need not close for `log_dir`."""
        return self._state is State.IDLE and self.settings.log_dir != log_dir

    @property
    def _key(self) -> str:
        return os.path.abspath(self.settings.log_dir)  # noqa: PTH100 - may be a URL

    def _end_of_fit(self, status: str) -> int:
        """Return when the fit ended, ns on the recording's clock, and end it in the account of the process.

        An interrupted fit ended where the training thread was last seen.
        """
        now = self.clock.now()
        latest_ns = self.clock.from_perf(self.timeline.latest())
        ended = now if status == "ended" else min(now, latest_ns)
        if self._fit_started_ns:
            _process.end(ended - self.clock.offset_ns, self.trained_by.ident)
        return ended

    def _leave_fit(self) -> None:
        """Remove all wrappers, and hand over what the training thread's timeline still holds."""
        with self.guarded("the last steps"):
            self.on_over()
            self.timeline.finish()
            if self.fits > 1:
                self._mark_fit()

    def _mark_fit(self) -> None:
        self._phase("fit", f"fit {self.fits}", self._fit_started_ns, self._ended_ns)

    def _phase(self, kind: str, name: str, start_ns: int, end_ns: int) -> None:
        offset, calls = self.clock.offset_ns, self.timeline.calls
        row = Phase(kind, name, start_ns - offset, end_ns - offset, "", end_ns - start_ns, calls)
        self.timeline.queue.append(row)

    def _retire(self) -> None:
        """End a series that no other fit has followed for `IDLE_FIT_S`."""
        with self._lock:
            if self._state is not State.IDLE or time.monotonic() < self._idle_until:
                return
            self._enter(State.ENDED)
            self._end_called = time.monotonic()
            self._judged.clear()
        self._stop.set()
        self._wake.set()

    @property
    def path(self) -> str | None:
        """Return the recording's path; None if nothing has been recorded yet."""
        return self._outputs.path

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """Return the sampled GPUs, as for the manifest; [] until the driver has answered."""
        return self._gpus.gpus

    @property
    def in_child(self) -> bool:
        """Return whether this is a forked process, whose parent goes on recording."""
        return self._pid != os.getpid()

    def _enter(self, state: State) -> None:
        self._state = state
        # Nothing is recorded (any more): the training thread, which asks each step, needs no hooks.
        self.off = state in (State.ENDED, State.INTERRUPTED)

    @property
    def status(self) -> str:
        """Return "ended" or "interrupted"; "" before."""
        return self._state.value if self.off else ""

    def fail(self, source: str, error: BaseException | str, cure: str = "", for_good: bool = True) -> None:
        """Switch off a failed source: report it once and list it in `unavailable`. Never raises.

        Args:
            source: what is not recorded, as named in the recording.
            error: the error, or the reason in words.
            cure: what the user can do; "" = nothing is known.
            for_good: False where it is tried again.
        """
        if source in self._reported:
            return
        try:
            self._reported.add(source)
            reason = " ".join(error.split()) if isinstance(error, str) else error_text(error)
            reason = printable(reason)
            self.unavailable.append({"source": source, "reason": reason, "cure": cure})
            warn(off(source) if for_good else source, reason, cure)
            if not isinstance(error, str):
                debug(source, error)
        except Exception:  # an error that cannot be printed, or no memory for another list
            pass

    @contextlib.contextmanager
    def guarded(self, source: str) -> Iterator[None]:
        """Switch off this source, and no other, where an error is raised inside."""
        try:
            yield
        except Exception as error:
            self.fail(source, error)

    def recovered(self, source: str) -> None:
        """Remove a source that works again from `unavailable`; it may be reported again later."""
        if source in self._reported:
            self._reported.discard(source)
            self.unavailable = [entry for entry in self.unavailable if entry["source"] != source]

    # ---- the recorder's thread -----------------------------------------------------------

    def _work(self) -> None:
        """Record on a thread of its own, flush by flush, until the training is over; then close the recording."""
        try:
            self._begun.wait()
            if not self._started_ns:
                return  # `start` was interrupted
            self._open()
            due = time.monotonic() + min(0.5, FLUSH_S)  # the first flush comes early
            latest = 0
            while not self._wait(min(LOOK_S, max(due - time.monotonic(), 0.0))):
                self._answer_requests()
                before, latest = latest, self.timeline.latest()  # of the training thread, perf ns
                # nothing has come since, and the fit left its thread's stack: an exception
                if latest == before and not self._ended_ns and self.watch.over():
                    self.end("interrupted")
                elif self._wake.is_set():  # somebody waits for a verdict
                    self._wake.clear()
                    self._tick(judge=True)
                    self._judged.set()
                elif time.monotonic() >= due:
                    # What a tick takes is part of the pause, half of which is left at least.
                    due = max(due + FLUSH_S, time.monotonic() + FLUSH_S / 2)
                    self._tick()
                    self._retire()
        except Exception as error:  # an error of ours
            self._lose_rows("the recording", error)
            self.end("interrupted")  # nobody takes any more what the hooks append
        finally:
            try:
                self._close()
            except Exception as error:
                self._lose_rows("the recording", error)
                self.run = None
            self._cpu_s += time.thread_time()
            self._judged.set()  # first: closing may have to write on this thread
            self._outputs.close(self.status or "interrupted")
            if self._state is State.INTERRUPTED or self._is_news():
                self.say_verdict()  # nothing else will: an interrupted fit calls no hook

    def _lose_rows(self, source: str, error: Exception) -> None:
        """Report that rows were lost, and switch the diagnosis off: it would be wrong without them."""
        self.fail(source, error)
        self._outputs.distrust(error)

    def _forget_others(self) -> None:
        """Free the memory of recordings that ended before the `KEPT` newest ones.

        Callback, recorder and outputs refer to each other, so that only a rare full run of Python's
        garbage collector would free them: half a megabyte a fit.
        """
        _ended.append(weakref.ref(self))
        while len(_ended) > KEPT:
            other = _ended.popleft()()
            if other is None or other is self:
                continue
            with other._lock:
                if other._closed.is_set():  # not continued since
                    other._outputs.release()

    def _wait(self, pause_s: float) -> bool:
        """Wait, sampling the training thread's stack; return whether the fit has ended.

        A stop of the whole process in this time is recorded, and a standstill of the training is looked for.
        """
        before = reading()
        try:
            if self.dispatch is None:
                self._wake.wait(pause_s)
                self._look_at_input()
            else:
                self.dispatch.wait(self._wake.wait, pause_s, self._look_at_input)
        except Exception as error:  # the look uses CPython internals
            self.dispatch = None
            self.fail("how steps are run", error)
        after = reading()
        stop = stop_between(before, after, pause_s, self.timeline.queue)
        self._look_for_steps(before, after, pause_s, stop is not None)
        if stop is not None:  # nothing ran from `start` to `end`, perf ns
            start, end = stop
            self.intake.assembler.stops.append(stop)
            self.timeline.phase(STOPPED, "", start, end, "")
        return self._stop.is_set()

    def _look_for_steps(self, before: Reading | None, after: Reading | None, pause_s: float, stopped: bool) -> None:
        """Note where no step has come for long, or comes again, and print it at once.

        Args:
            before, after: readings of the process's clocks around the wait; None = they cannot be read.
            pause_s: how long the wait was meant to be.
            stopped: the whole process stood still meanwhile.
        """
        watch = self._stuck
        if watch is None or self._stop.is_set():
            return
        try:
            if self._ended_ns:  # between fits, where no steps are due
                watch.pause()
            elif (change := watch.look(before, after, pause_s, stopped)) is not None:
                self._say_of_standstill(watch, change)
                self._tick(judge=True)
                self._outputs.flush(now=True)
        except Exception as error:  # it uses CPython's internals
            self._stuck = None
            self.fail("the watch for steps that do not come", error)

    def _say_of_standstill(self, watch: StuckWatch, change: Standstill | None) -> None:
        """Print that a standstill has begun or ended, and call the program's `on_stuck`; None = neither."""
        if change is None:
            return
        text = stood_still(change)
        if self.settings.report and watch.worth_a_line:
            say(text)
        self._outputs.tell("on_stuck", {"text": text, "over": "end_ns" in change, **change})

    def _open(self) -> None:
        """Begin the recording: facts about job, machine and framework, and the sampling of GPUs.

        The recording ends at once where its folder cannot be used.
        """
        self._look_at_input()  # first: its Python functions are timed from here on
        self._record_memory(True)
        if self._outputs.recording:  # a series continues
            self._outputs.reopen()
            self._gpus.start(self.adapter, self.settings.sample_hz)
            return
        # Where the ranks of the job meet: the framework's address, or Ray's.
        with self.guarded("the job's name"):
            rendezvous = self.adapter.runtime.rendezvous()
            if self._ray is not None:
                self.facts.update(self._ray.facts())
                rendezvous = rendezvous or self._ray.rendezvous()
                self._say_where()
            self.facts.update(job_facts(self.settings.job, framework=rendezvous))
        self.facts["script"] = script_name(redact=self.settings.redact)
        self.facts["arguments"] = hashed_arguments()
        self.facts["user"] = user_name()  # left out where names are redacted
        self.facts["scheduler"] = scheduler_facts(redact=self.settings.redact)
        self._gather_facts()
        if not self._outputs.open_recording(self.facts):
            self.end("interrupted")
            return
        if self._is_late():
            self._save_rows()
        self._gpus.start(self.adapter, self.settings.sample_hz)
        with self.guarded("the watch for steps that do not come"):
            self._stuck = self._watch_for_steps()

    def _watch_for_steps(self) -> StuckWatch:
        """Return the watch for a training that stands still; it takes what it reads as functions."""
        from gpu_util_callback.diagnosis import thresholds_in_force

        return StuckWatch(
            self.timeline,
            lambda: self.trained_by,
            lambda: self.watch.code,
            self.clock.offset_ns,
            thresholds_in_force(self.settings.thresholds)["stuck"],
            self._outputs.keep_file,
            lambda: self.intake.steps,
            lambda: [gpu["index"] for gpu in self.gpus if gpu.get("used_by_framework")],
            lambda: int(self.facts.get("world_size") or 1),
            self._others_of_job,
        )

    def _others_of_job(self) -> list[Facts]:
        """Return the manifests of the job's other ranks.

        [] where the log_dir is remote or does not answer in `OTHERS_S`.
        """
        if "://" in self.settings.log_dir:
            return []
        job, rank = self.facts.get("job"), int(self.facts.get("rank") or 0)
        try:
            log_dir = self.settings.log_dir
            return daemon.begin(lambda: others_of_job(log_dir, job, rank), "gpu-util-job").result(OTHERS_S)
        except (TimeoutError, OSError):
            return []

    def _look_at_input(self) -> None:
        """Examine the input's functions through the adapter, until that fails once."""
        if not self._inspects_input:
            return
        try:
            self.adapter.look_at_input()
        except Exception as error:
            self._inspects_input = False
            self.fail("facts about the input's functions", error)

    def _answer_requests(self) -> None:
        """Take the profiler window that `gpu-util look` asks for, or note in the facts why there is none."""
        requests, windows, refusal = self._outputs.requests, self.windows, None
        with self.guarded("requests for profiler windows"):
            if requests:  # a new request
                self._look_id, steps = requested(requests.popleft())
                if windows is not None:
                    refusal = windows.look(self._look_id, steps)
                else:
                    why = [entry["reason"] for entry in self.unavailable if entry["source"] == SOURCE]
                    # no windows at all: they failed, or were not wanted
                    refusal = why[0] if why else 'it was started with trace="off"'
            elif self._look_id and windows is not None:  # one that is under way: it may have become impossible
                refusal = windows.look_refused(self._look_id)
            if refusal:
                self.facts["look_refused"] = {"look": self._look_id, "reason": refusal}
                self._look_id = ""

    def _is_late(self) -> bool:
        """Return whether the fit ended so long ago that its rows must be written now."""
        return self._stop.is_set() and time.monotonic() > self._end_called + LATE_S

    def _save_rows(self) -> None:
        """Write the rows there are, however long the rest takes."""
        self._tick()
        self._outputs.flush(now=True)

    def _say_where(self) -> None:
        """Print the path under Ray, where a relative log_dir is not where the user looks for it."""
        where = self._ray.lost_folder(self.settings.log_dir) if self._ray is not None else None
        if where is not None and self.settings.report:
            say(
                f"log_dir {self.settings.log_dir!r} is relative to this process' own folder: "
                f"{where}, which Ray may delete; give an absolute path or a URL"
            )

    def _gather_facts(self) -> None:
        """Add the adapter's facts about the model; within a dictionary, values that are known already stay."""
        with self.guarded("facts about the model"):
            for key, value in self.adapter.facts().items():
                earlier = self.facts.get(key)
                self.facts[key] = {**value, **earlier} if isinstance(earlier, dict) else value

    def _tick(self, last: bool = False, judge: bool = False) -> None:
        """Take new rows of the training thread and the sampler, diagnose, have them written.

        Args:
            last: no more will come.
            judge: make a report.
        """
        tables, samples = self.intake.take(last, self._ended_ns)
        self._take_windows(tables)
        if self._stuck is not None:
            self._stuck.add(tables, samples)
            if last:
                over = self._stuck.close(self._ended_ns, self._state is State.INTERRUPTED)
                self._say_of_standstill(self._stuck, over)
        steps = self.intake.steps
        stages = self._stages.read(steps, last)  # of tf.data's pipeline; None = not due
        if stages is not None:
            tables["pipeline"] = stages
        outputs = self._outputs
        with self.guarded("samples per second"):
            samples += self.work.add(tables)
        outputs.append(tables, samples)
        skipped = self.intake.assembler.skipped
        outputs.count_dropped(skipped - self._skipped)
        self._skipped = skipped
        outputs.write_scalars(tables, self.work, (steps - 1, self._ended_ns) if last else None)
        if last and self._state is State.INTERRUPTED:  # by us, perhaps: a step was under way
            self._ended_ns = max(self._ended_ns, self.clock.from_perf(self.timeline.latest()))
        now = self._ended_ns or self.clock.now()
        self._update_facts(last)  # first: a fit's only diagnosis needs its GPUs
        if "://" not in self.settings.log_dir:  # the diagnosis may take a while
            outputs.flush()
        outputs.diagnose(self.facts, self._started_ns, now, last, judge)
        if last or judge:
            self._report(now)
        outputs.flush()
        self._pause_when_idle()

    def _report(self, now: int) -> None:
        """Make the report of the rows diagnosed just now, for messages and the callback; no file is read.

        Args:
            now: ns on the recording's clock.
        """
        with self.guarded("the verdict"):
            self.run = None
            self.recorded = self._outputs.recorded(self.status or "live", self.intake.steps, now)
            if self.recorded is not None:
                from gpu_util_callback.diagnosis import run_report
                from gpu_util_callback.report import screen  # noqa: F401 - ready for the verdict

                self.run = run_report(self.recorded)

    def judge(self, deadline_s: float = CLOSE_S) -> None:
        """Make `run` the report of everything so far; waits for no storage."""
        if not self.off and not self.in_child:
            self._judged.clear()
            self._wake.set()
            self._judged.wait(deadline_s)

    def summary(self) -> Summary:
        """Return the results so far. A fit that is over without notice (by an error, perhaps) is ended first."""
        from gpu_util_callback.report.notebook import Summary

        if self._state is State.IDLE:
            self.end("ended")  # its last rows are still to be judged
        elif not self.off and self.watch.over():
            self.end("interrupted")  # left by an exception
        else:
            self.judge()
        return Summary(self.run, self.recorded)

    def counts_batches_of(self, data_adapter: object | None) -> None:
        """Take the sizes of a fit's batches from Keras' own data adapter, None without one."""
        self.work.sizes = BatchSizes(data_adapter, lambda: self.intake.shapes)

    def _take_windows(self, tables: Tables) -> None:
        """Add the rows, facts and scalars of the profiler windows that were read since the last tick."""
        if self.windows is None:
            return
        try:
            for result in self.windows.drain():
                result.add_to(tables)
                self.facts.setdefault("windows", []).append(result.facts)
                self._look_id = "" if result.facts.get("look") else self._look_id
                self._outputs.add_points(result.points())
        except Exception as error:
            self.fail("profiler windows", error)
            self.windows = None

    def say_verdict(self) -> None:
        """Print two lines about where the time went, if all rows were judged in time and reports are wanted."""
        if self.in_child:
            return
        if self.settings.report and self._judged.is_set() and self.run is not None:
            self._said_s, self._unsaid = self._training_s(), False
            program = None if self.settings.redact else program_to_try(self.settings.log_dir)
            verdict(self.run, self._state is not State.ENDED, program)
        drain()

    def _training_s(self) -> float:
        return (self._ended_ns - self._started_ns - self._between_ns) / 1e9

    def _is_news(self) -> bool:
        """Return whether a series owes a verdict and has trained twice as long as at its last one.

        At the end of the process any time since is news.
        """
        if not self._unsaid:
            return False
        trained_s = self._training_s()
        if self._outputs.in_a_hurry.is_set():  # the last opportunity
            return trained_s > self._said_s
        return trained_s > max(2 * self._said_s, NEWS_S)

    def _update_facts(self, last: bool) -> None:
        """Bring the manifest's facts up to date: of the fit, of memory, and of what recording costs.

        Args:
            last: for the last time.
        """
        if not self._outputs.recording:
            return
        with self.guarded("facts about the run"):
            self._gather_late_facts()
            fit = self.facts.get("fit")
            if fit is not None:
                self.facts["fit"] = {**fit, **self._fit_facts()}
            steps = self.intake.steps
            wall = max((self._ended_ns or self.clock.now()) - self._started_ns, 1)  # ns since the recording's begin
            own_ns, own_steps = self.timeline.own_ns, self.timeline.own_steps  # of its sampled steps
            overhead: dict[str, Any] = {
                "callback_us_per_step": round(own_ns / own_steps / 1e3, 3) if own_steps else None,
                "recorder_cpu_pct": round(100e9 * (self._cpu_s + self._outputs.cpu_s + time.thread_time()) / wall, 3),
                "windows_s": 0.0,
            }
            facts: dict[str, Any] = {"memory": self.memory.facts(self.intake.shapes, last)}
            if self._stuck is not None:
                facts["step_watch"] = self._stuck.facts()
            unavailable = [
                *self.unavailable,
                *self.adapter.problems(),
                *self._unrecorded_steps(steps),
                *self._missing_input_waits(steps),
            ]
            if self.windows is not None:
                overhead["windows_s"] = round(self.windows.cost_s, 4)
                facts["windows"] = self.facts.get("windows", [])
                unavailable += self.windows.unavailable
            if "look_refused" in self.facts:
                facts["look_refused"] = self.facts["look_refused"]
            facts |= self.work.facts(self.facts, self._gpus.gpus)
            unavailable += self.work.unavailable
            facts.update(self._gpus.facts(self.facts.get("framework") or {}))
            unavailable += self._gpus.unavailable
            overhead.update(self._gpus.overhead)
            facts["overhead"] = overhead
            facts["unavailable"] = unavailable
            if self._ended_ns or self.fits > 1:  # None again where another fit of the series has begun
                facts["ended_ns"] = self._ended_ns or None
            if self.fits > 1:
                facts["fits"] = self.fits
            # as of now; at the last update
            (compilations, compile_ns), counted = self.intake.assembler.compiled, self._compiled
            self._compiled = compilations, compile_ns
            _process.compiled(compilations - counted[0], compile_ns - counted[1])
            process = _process.facts(time.perf_counter_ns())
            if process:
                facts["process"] = process
            self.facts.update(facts)
            self._outputs.update(**{**facts, "fit": self.facts.get("fit"), "model": self.facts.get("model")})

    def _fit_facts(self) -> dict[str, object]:
        """Return the facts of the manifest's `fit` that became known since it began."""
        facts: dict[str, Any] = {**self.begins_at, **self.timeline.handed.facts()}
        dims = seen_dims(self.intake.shapes)
        if dims is not None:
            facts["input_dims"] = dims
        if self.dispatch is not None and (dispatch := self.dispatch.facts()):
            facts["python_in_steps"] = self.dispatch.python_in_steps()
            if (self.facts.get("fit") or {}).get("loop") == "custom":  # of a fit, Keras says it
                facts["dispatch"] = dispatch
        if self._inspects_input:
            facts |= self.adapter.input_facts()
        return facts

    def _unrecorded_steps(self, steps: int) -> list[Unavailable]:
        """Return how many steps could not be recorded, as a line about missing data; [] for none."""
        if not self._skipped:
            return []
        reason = f"{self._skipped:,} of {steps:,} steps have none: they came faster than they could be recorded"
        return [{"source": "step times", "reason": reason, "cure": ""}]

    def _missing_input_waits(self, steps: int) -> list[Unavailable]:
        """Return how many steps lack an input wait, as a line about missing data.

        [] where none or the reason is known.
        """
        lost = self.intake.assembler.lost_rows
        if not lost or any(entry["source"] == "input wait" for entry in self.adapter.unavailable):
            return []  # none, or the reason why nothing is recorded is known
        reason = f"it is missing for {lost} of {steps} steps: the train function's records do not match its calls"
        return [{"source": "input wait", "reason": reason, "cure": ""}]

    def _gather_late_facts(self) -> None:
        """Gather the facts of a model that was not built when the fit began, once its first step has come."""
        model = self.facts.get("model")
        if model is None and "framework" in self.facts:
            return  # a custom loop: no facts of its model will come
        unknown = (model or {}).get("parameters") is None
        if unknown and self.intake.steps:
            self._gather_facts()

    def _pause_when_idle(self) -> None:
        """End the recording after `IDLE_S` without a step, where the fit itself cannot be watched."""
        if self.watch.located or self._ended_ns:
            return
        idle = (time.perf_counter_ns() - self.timeline.latest()) / 1e9
        if idle > IDLE_S:
            self.end("interrupted")

    def _record_memory(self, on: bool) -> None:
        if self._keeps_stacks:
            with self.guarded("stacks of allocations"):
                self.adapter.runtime.record_memory(on)

    def _close(self) -> None:
        """End the recording: stop the sampling, wait for a window, judge the last rows and seal the files."""
        self._look_at_input()
        is_remote = "://" in self.settings.log_dir  # each file takes its time there
        reads_windows = self.windows is not None and self.windows.busy
        if not is_remote or reads_windows or self._is_late():
            self._save_rows()  # the rest may take a while on a slow machine
        self._gpus.stop()
        if self._state is State.INTERRUPTED:
            self.memory.failed_unseen("validation" if self.timeline.in_test else "the fit")
        self._record_memory(False)
        if self.windows is not None and self.fits == 1:  # a series takes no more windows
            self.windows.close(WINDOWS_S)
        self._tick(last=True)
        for entry in self._unrecorded_steps(self.intake.steps):
            warn(entry["source"], entry["reason"])


def close_left_over(keep: Callable[[Recorder], bool] = lambda recorder: False) -> None:
    """Close the recordings of fits that ended without notice.

    Args:
        keep: True for a recorder that stays open.
    """
    for recorder in _own_recorders():
        if not keep(recorder):
            recorder.end("interrupted", deadline_s=2.0)


def _finish_at_exit(own_thread: bool = False) -> None:
    """Wait at the end of the process for pending writes and messages, up to `EXIT_S`.

    Args:
        own_thread: leave out trainings of other threads, which may continue.
    """
    until, main = time.monotonic() + EXIT_S, threading.main_thread()
    for recorder in _own_recorders():
        if own_thread and not recorder.off and recorder.trained_by is not main:
            continue
        recorder.finish(until - time.monotonic())
    drain()
    drain_calls(ANSWER_S)


def _storage_hangs() -> bool:
    """Return True if a wait for another recording of this process timed out and its files are still open."""
    return any(recorder._released.is_set() and not recorder._closed.is_set() for recorder in _own_recorders())


def _own_recorders() -> list[Recorder]:
    return [recorder for recorder in list(_active.values()) if not recorder.in_child]


def _stop_in_child() -> None:
    """Record no more in a forked process: it has none of the threads. Takes no lock."""
    for recorder in list(_active.values()):
        if not recorder.off:
            recorder._enter(State.INTERRUPTED)
        recorder.timeline.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)


try:  # Runs while thread pools still accept work: object stores connect through them.
    threading._register_atexit(_finish_at_exit, own_thread=True)  # type: ignore[attr-defined]
except (AttributeError, RuntimeError):  # not there, or the process is already ending
    pass
atexit.register(_finish_at_exit)
