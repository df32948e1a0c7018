"""A recorder's outputs: the recording's files, the scalars, and their diagnosis."""

from __future__ import annotations

import errno
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback.recorder.messages import reason_of, say, tell
from gpu_util_callback.recorder.model_work import ModelWork
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest import dumps, parse
from gpu_util_callback.recording.segments import SampleBlock, Tables
from gpu_util_callback.recording.work import mfu_of

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.run_reports import Recorded
    from gpu_util_callback.recording.event_files import ScalarWriter

# Below 2 s with the time that a flush takes and the pause before it.
FLUSH_S = 1.5
REMOTE_FLUSH_S = 30.0
# Seconds between the attempts to write a recording's end, where writing fails. Only the end of
# the process waits for them, and it cuts them short.
RETRIES_S = (0.5, 2.0, 5.0)
DIAGNOSIS_SHARE = 0.003  # of a processor, for one with many spans
# Between two, but the first: an input pipeline in Python needs their lock, too. The later, the less
# changes: a quarter of the run so far, within these.
DIAGNOSIS_S, SELDOM_S = 5.0, 10.0
MOST_UNAPPENDED = 64  # tables and groups that wait for memory
MOST_POINTS = 50_000  # of scalars that wait for storage: about 20 MB
MOST_SHORTAGES, SHORTAGE_S = 50, 0.1  # how often writing waits for memory, and how long
SILENT_S = 30.0  # after which one line says that log_dir does not answer
WRITING = "writing the recording"
FULL = (errno.ENOSPC, errno.EDQUOT)


class Outputs:
    """The files of one recorder, and the diagnosis. No method raises, or waits for storage.

    A thread of its own writes: whatever storage does, rows are taken, judged and kept in bounds.

    Args:
        settings: the user's settings.
        clock: the recording's.
        fail: called with (source, error or reason, cure) for each failure; `for_good=False` where
            it is tried again.
        recovered: called with the source of such a failure that is over.
        events: called on the writing thread.

    Attributes:
        path: of the recording; None until it is open.
        failing: whether the last write of the recording failed.
        sealed: whether the recording was closed properly.
        requests: what `gpu-util look` asks for, until it is taken.
        in_a_hurry: set when the process ends: the next attempt to write the end is the last.
        cpu_s: processor time of the writing threads.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        fail: Callable[..., None],
        recovered: Callable[[str], None] = lambda source: None,
        events: WritingEvents | None = None,
    ):
        self.path: str | None = None  # of the recording
        self.failing = False
        self.sealed = False  # whether the recording was closed properly
        self.requests: deque[bytes] = deque(maxlen=1)
        self.in_a_hurry = threading.Event()
        self.cpu_s = 0.0  # of the writing threads
        self._settings = settings
        self._clock = clock
        self._fail = fail
        self._recovered = recovered
        self._events = WritingEvents() if events is None else events
        self._thread: threading.Thread | None = None
        self._due = threading.Event()  # there is something to write
        self._closing: str | None = None  # the status to close with
        self._over = False  # nothing more will be written
        self._troubled = False  # whether it was reported that writing fails
        self._request_began = 0.0  # `time.monotonic` of the request that storage has not answered; 0 = none
        self._writer: Any = None  # a `RecordingWriter`, once it is open
        # (function, its arguments) of rows that no memory was left for
        self._unappended: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._scalars: ScalarWriter | None = None
        self._no_scalars = False
        self._points = ScalarPoints(settings.scalar_freq)
        # Points (step of the fit, value by tag, ns) that are in no file yet; the oldest are dropped where nothing can
        # be written.
        self._points_due: deque[tuple[int, dict[str, float], int]] = deque(maxlen=MOST_POINTS)
        self._offset = 0  # the scalars' step of this fit's first step
        self._diagnosis: RunningDiagnosis | None = None
        self._next_diagnosis_ns = 0  # on the recording's clock
        self._diagnosis_ns: deque[int] = deque(maxlen=2)  # of processor time; a first one imports
        self._next_flush = 0.0  # `time.monotonic`

    @property
    def recording(self) -> bool:
        """Return whether there is a recording to write to."""
        return self._writer is not None

    # ---- the recorder's thread -----------------------------------------------------------

    def open_recording(self, facts: dict[str, object]) -> bool:
        """Begin the recording, its diagnosis and its files; False = there is none (reported already).

        Without a diagnosis the recording goes on.

        Args:
            facts: of the manifest.
        """
        try:
            from gpu_util_callback.recording.writer import RecordingWriter

            self._writer = RecordingWriter(
                self._settings.log_dir,
                facts,
                clock=self._clock,
                redact=self._settings.redact,
                flush_s=self._flush_s(),
                later=True,
            )
            self._start()
        except Exception as error:
            self._fail("the recording", error)
            self._writer = None
            return False
        try:
            self._diagnosis = RunningDiagnosis(self._writer.facts["started_ns"], self._settings.thresholds)
            self._writer.sums = self._diagnosis.evidence
        except Exception as error:
            self.distrust(error)
        return True

    def reopen(self) -> None:
        """Reopen a closed recording."""
        self.sealed, self._closing, self._over = False, None, False
        self._writer.reopen()
        self._start()

    def _start(self) -> bool:
        """Begin the writing thread; False where there is no room for another one: then the recorder's thread writes."""
        self._thread = thread = threading.Thread(target=self._work, name="gpu-util-writer", daemon=True)
        self._due.set()  # the folder and the first manifest come at once
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # the recorder's thread writes until there is
            self._thread = None
            return False
        return True

    def release(self) -> None:
        """Free what only a recording that is continued needs."""
        self._writer = self._diagnosis = self._scalars = None

    def _flush_s(self) -> float:
        return REMOTE_FLUSH_S if "://" in self._settings.log_dir else FLUSH_S

    def append(self, tables: Tables, samples: list[SampleBlock]) -> None:
        """Append new rows to the recording, and samples to the scalars.

        Where memory is short, the newest `MOST_UNAPPENDED` tables and groups are kept for the next call.
        """
        for block in samples:
            self._points.add_samples(block.group, block.columns, block.time_ns, block.values)
        if self._writer is None:
            return
        due = self._unappended
        due += [(self._writer.append, item) for item in tables.items()]
        due += [
            (self._writer.append_samples, (sample.group, sample.columns, sample.time_ns, sample.values))
            for sample in samples
        ]
        try:
            while due:
                append, rows = due[0]
                append(*rows)
                del due[0]
        except MemoryError:
            del due[:-MOST_UNAPPENDED]  # there may be room the next time
        except Exception as error:
            due.clear()
            self.distrust(error)

    def count_dropped(self, steps: int) -> None:
        """Count steps that got no row."""
        if self._writer is not None and steps:
            self._writer.count_dropped("steps", steps)

    def add_points(self, points: Iterable[tuple[int, dict[str, float], int]]) -> None:
        """Write scalars given as (the fit's step, values, time in ns)."""
        self._points_due.extend(points)

    def write_scalars(self, tables: Tables, work: ModelWork, last: tuple[int, int] | None = None) -> None:
        """Make scalars of new rows, written with the next flush. Switched off after a first error.

        Args:
            tables: new rows.
            work: the sizes of their batches, and what the GPUs could do.
            last: (the last step, the end in ns), where no more rows will come.
        """
        if self._no_scalars:
            return
        try:
            if "steps" in tables:
                steps = tables["steps"]
                sizes = work.sizes.of(steps) if work.sizes is not None else None
                self.add_points(self._points.add_steps(steps, sizes, work.rates))
            if last is not None:
                self.add_points(self._points.last_point(*last))
        except Exception as error:
            self._fail("scalars", error)
            self._no_scalars = True

    def diagnose(self, facts: dict[str, object], started_ns: int, now_ns: int, last: bool, judge: bool = False) -> None:
        """Diagnose all rows so far; print what is newly found while training continues.

        The next diagnosis waits for some seconds, and where there are many spans, which take longer
        to find, in proportion.

        Args:
            facts: of the manifest.
            started_ns, now_ns: on the recording's clock.
            last: no more rows will come.
            judge: do not wait for the next diagnosis.
        """
        if self._diagnosis is None or (now_ns < self._next_diagnosis_ns and not (last or judge)):
            return
        try:
            began = time.thread_time_ns()
            with self._writer.summed():
                result = self._diagnosis.result(facts, now_ns, ended=last)
            self.update(diagnosis=result)
            self._diagnosis_ns.append(time.thread_time_ns() - began)
            if len(self._diagnosis_ns) > 1:  # the first one imports: its time says nothing of the next
                # a quarter of the run so far, within bounds
                pause_s = min(max(DIAGNOSIS_S, (now_ns - started_ns) / 4e9), SELDOM_S)
                pause_ns = max(1e9 * pause_s, min(self._diagnosis_ns) / DIAGNOSIS_SHARE)
                self._next_diagnosis_ns = now_ns + int(pause_ns)
            if not last:
                self._announce(self._diagnosis.new(result))
        except Exception as error:
            self.distrust(error)

    def _announce(self, findings: Iterable[Mapping]) -> None:
        """Print findings while the training goes on, and hand them to `on_finding`."""
        from gpu_util_callback.diagnosis.verdict import news

        for finding in findings:
            text = news(finding)
            if self._settings.report:
                say(text)
            self.tell("on_finding", {"text": text, "finding": finding})

    def tell(self, argument: str, event: Mapping[str, Any]) -> None:
        """Call the program's own function of this argument with an event of this training."""
        place = {"log_dir": self._settings.log_dir, "rank": self._writer and self._writer.facts.get("rank")}
        tell(argument, getattr(self._settings, argument), {**event, **place})

    def distrust(self, error: Exception) -> None:
        """Switch the diagnosis off: it lacks rows, and an older one says nothing of the run."""
        self._diagnosis = None
        self._fail("the diagnosis", error)
        self.update(diagnosis=None)

    def recorded(self, status: str, steps: int, now_ns: int) -> Recorded | None:
        """Return what a report of the rows diagnosed so far rests on; None without a diagnosis."""
        if self._diagnosis is None or self._writer is None:
            return None
        manifest = self._writer.manifest(status, now_ns)
        with self._writer.summed():
            return self._diagnosis.recorded({**manifest, "rows": {"steps": steps}}, self.path)

    def keep_file(self, name: str, data: bytes) -> None:
        """Have a file written into the recording's folder, for other tools."""
        if self._writer is not None:
            self._writer.files[name] = data

    def update(self, **facts: object) -> None:
        """Update facts of the manifest, written with the next flush."""
        if self._writer is not None:
            self._writer.update(**facts)

    def flush(self, now: bool = False) -> None:
        """Have written what was appended, if it is due (or `now`); report a storage that does not answer."""
        if now or time.monotonic() >= self._next_flush:
            self._next_flush = time.monotonic() + self._flush_s() - FLUSH_S / 2
            self._due.set()
            # no thread, and still none to be had
            if self._thread is None and self.recording and not self._over and not self._start():
                self._write_here()
        if self.unanswered_s > SILENT_S:
            self._report_trouble(
                f"{self._settings.log_dir} has not answered for {SILENT_S:g} s; training continues",
                "check the disk or the network behind it, or give another log_dir",
            )

    def _report_trouble(self, reason: str, cure: str) -> None:
        self._troubled = True
        self._fail(WRITING, reason, cure, for_good=False)

    def _recover(self) -> None:
        """Withdraw the message that writing fails."""
        if self._troubled:
            self._troubled = False
            self._recovered(WRITING)
            listed = self._writer.facts.get("unavailable") or ()
            self.update(unavailable=[entry for entry in listed if entry["source"] != WRITING])

    @property
    def unanswered_s(self) -> float:
        """Return for how long storage has not answered."""
        began = self._request_began
        return time.monotonic() - max(began, self._writer.answered) if began else 0.0

    def close(self, status: str) -> None:
        """Have everything sealed with a status. Where that fails it is retried for some seconds."""
        self._closing = status
        self._due.set()
        if self._thread is not None:  # it seals the files
            return
        if not self.recording or self._over:  # there is nothing to seal
            self._events.closed()
        elif not self._start():  # no thread to be had: here, then
            self._work()

    # ---- the writing thread --------------------------------------------------------------

    def _work(self) -> None:
        """Write on a thread of its own until the recording is closed.

        Gives up after `MOST_SHORTAGES` shortages of memory in a row.
        """
        began_s = time.thread_time()  # not 0 on the recorder's thread
        try:
            failures = 0
            while failures < MOST_SHORTAGES:
                try:
                    if self._write_or_seal():
                        return
                    failures = 0
                except MemoryError:  # outside of what is tried again anyway
                    failures += 1
                    self._due.set()
                    time.sleep(SHORTAGE_S)
            raise MemoryError
        except Exception as error:  # lasting shortage of memory; no library for this kind of URL
            self._give_up(error)
        finally:
            self._over = True
            self.cpu_s += time.thread_time() - began_s
            self._thread = None
            self._events.closed()

    def _write_or_seal(self) -> bool:
        """Wait for something to write and write it; return whether that was the recording's end."""
        if self._closing is None:
            self._due.wait()
            self._due.clear()
        if self._closing is None:
            self._guarded(self._write)
            return False
        self._seal(self._closing)
        return True

    def _write_here(self) -> None:
        """Write on the recorder's thread, where there can be no other; give up where that is impossible for good."""
        try:
            self._guarded(self._write)
        except MemoryError:  # there may be room the next time
            pass
        except Exception as error:
            self._over = True
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Report why the recording cannot be written, and end it."""
        self._fail(
            "the recording",
            f"cannot write to {self._settings.log_dir} ({reason_of(error)}); training continues without it",
            "give another log_dir",
        )
        self._events.impossible()

    def _guarded(self, write: Callable[[], None]) -> Exception | None:
        """Run `write`; return the error of an attempt that failed and may succeed later, None after a success.

        Raises: an error before the recording is open that is no shortage, such as a missing library.
        """
        self._request_began = time.monotonic()
        try:
            write()
        except Exception as error:
            if self.path is None and not isinstance(error, (OSError, MemoryError)):
                raise
            self.failing = True
            self._report_trouble(
                f"{self._settings.log_dir}: {reason_of(error)}; retrying, training continues", self._cure(error)
            )
            self._events.failed()
            return error
        finally:
            self._request_began = 0.0
        self.failing = False
        self._recover()
        return None

    def _begin(self) -> None:
        """Open the recording's files and write what is there; where they are open, only write. Raises: OSError."""
        if self.path is not None:
            return self._write()
        self._request_began = 0.0  # importing a store's library takes its time: no silence of the store
        from gpu_util_callback.recording.event_files import next_step_offset
        from gpu_util_callback.recording.storage import storage_for

        storage_for(self._settings.log_dir)
        self._request_began = time.monotonic()
        try:  # looked up before our own recording is among the earlier ones
            self._offset = next_step_offset(self._settings.log_dir)
            self.update(scalar_step_offset=self._offset)
        except Exception as error:
            self._fail("the scalars' first step", error)
        self._request_began = time.monotonic()  # it has answered
        self._writer.open()
        self._request_began = time.monotonic()
        self.path = self._writer.path
        return self._write_scalars()

    def _write(self) -> None:
        """Write everything new, and take a request of `gpu-util look`. Raises: OSError."""
        if self.path is None:
            return self._begin()
        removals = self._writer.removals
        self._writer.flush()
        if self._writer.removals > removals:  # somebody deleted the folder
            self._fail(
                "earlier rows",
                f"{self._settings.log_dir} was removed during training; it was made again",
                for_good=False,
            )
        self.requests.extend(filter(None, [self._writer.take_request()]))
        return self._write_scalars()

    def _write_scalars(self) -> None:
        """Write the points that are due to TensorBoard's event file, which is made first. Raises: OSError.

        Any other error switches the scalars off.
        """
        if self._no_scalars:
            return
        try:
            if self._scalars is None:
                from gpu_util_callback.recording.event_files import ScalarWriter

                rank = int(self._writer.facts.get("rank") or 0)
                log_dir, redact = self._settings.log_dir, self._settings.redact
                self._scalars = ScalarWriter(log_dir, rank, redact=redact)
                self._scalars.marker()
            self._scalars.reopen()
            due, offset = self._points_due, self._offset
            points = [due.popleft() for _ in range(len(due))]
            self._scalars.points((offset + step, values, when / 1e9) for step, values, when in points)
            self._scalars.flush()
        except OSError:
            raise
        except Exception as error:
            self._fail("scalars", error)
            self._no_scalars = True

    def _write_summary(self, status: str) -> None:
        """Write the summary by which `gpu-util total` counts the run. Raises: OSError."""
        from gpu_util_callback.diagnosis.run_reports import Recorded
        from gpu_util_callback.diagnosis.run_summary import summary_as_diagnosed, written

        facts, _ = parse(dumps(self._writer.manifest(status, self._clock.now())))
        summary = summary_as_diagnosed(Recorded(facts), status)
        data = written(summary) if summary is not None else None
        if data is not None:
            self._writer.write_summary(data)

    def _cure(self, error: Exception) -> str:
        """Return in words what the user can do where writing to log_dir failed."""
        if isinstance(error, OSError) and error.errno in FULL:
            return "make room, or give another log_dir"
        if "://" in self._settings.log_dir:
            return "check the network and this process's credentials, or give another log_dir"
        return "make sure that this process may write there, or give another log_dir"

    def _seal(self, status: str) -> None:
        """Close the recording's files with a status, with retries where the storage does not take them.

        Args:
            status: "ended" or "interrupted".
        """

        def seal() -> None:
            """Write what is left, and close each file."""
            if self.path is None:
                self._begin()
            if self._troubled:  # write first what failed, so that the manifest does not list a trouble that is over
                self._writer.flush()
                self._recover()
            self._writer.close(status)
            self._write_summary(status)
            self._write_scalars()
            if self._scalars is not None:
                self._scalars.close()

        is_last_attempt = False
        for pause in (*RETRIES_S, None):  # None = no more attempts
            error = self._guarded(seal)
            if error is None:
                self.sealed = True
                return
            if pause is None or is_last_attempt:
                self._fail(
                    "the recording's end",
                    f"{self._settings.log_dir}: {reason_of(error)}; it is missing",
                    self._cure(error),
                    for_good=False,
                )
                return
            is_last_attempt = self.in_a_hurry.wait(pause)


@dataclass
class WritingEvents:
    """Callbacks of the writing thread.

    Attributes:
        closed: nothing more will be written.
        failed: a write failed, and is tried again.
        impossible: the recording cannot be written at all.
    """

    closed: Callable[[], None] = lambda: None
    failed: Callable[[], None] = lambda: None
    impossible: Callable[[], None] = lambda: None


class RunningDiagnosis:
    """The diagnosis of a run that goes on.

    Args:
        started_ns: of the run, on the recording's clock.
        thresholds: the user's, or None.

    Attributes:
        evidence: what it rests on; the recording's writer adds rows to it.
    """

    def __init__(self, started_ns: int, thresholds: Mapping | None):
        from gpu_util_callback.diagnosis import Announcer, Evidence, thresholds_in_force

        self.evidence = Evidence(started_ns)
        self._limits = thresholds_in_force(thresholds)
        self._result: dict[str, object] = {}  # the last one, and its account
        self._announcer = Announcer()

    def result(self, facts: Mapping[str, object], now_ns: int, ended: bool) -> Mapping[str, object]:
        """Return the diagnosis so far, as the manifest keeps it."""
        from gpu_util_callback.diagnosis import Run, judge

        run = Run(facts, self.evidence, now_ns, ended)
        diagnosis = judge(run, self._limits)
        self._result = {"account": run.account, "diagnosis": diagnosis}
        return diagnosis

    def recorded(self, facts: dict[str, object], path: str | None) -> Recorded:
        """Return what a report of the last result rests on."""
        from gpu_util_callback.diagnosis.run_reports import Recorded

        return Recorded(parse(dumps({**facts, **self._result}))[0], self.evidence.summary.result(), path)

    def new(self, result: Mapping[str, object]) -> list[Mapping]:
        """Return a finding per cause, once, when it is established and has cost enough to matter."""
        return self._announcer.new(result)


# Sampled columns behind the scalars of a GPU. The driver's own buffer has the first alone; where it
# should not be polled for power, its energy counter gives that.
_GAUGES = ("utilization_pct", "memory_used_bytes", "power_mw", "power_energy_mw")
# "auto": every step at first, then increasingly rare, so that a curve of n steps has about
# DENSE x log2(n / DENSE) points.
DENSE = 200


class ScalarPoints:
    """Points (step, {tag: value}, time_ns) made of step rows and GPU samples.

    Args:
        freq: steps a point, or "auto".
    """

    def __init__(self, freq: int | str):
        self._freq = freq
        self._next = 0  # the step that completes the next point
        self._steps = 0  # since the last point; so are all sums
        self._duration_ns = self._wait_ns = 0  # ns
        self._steps_with_wait = 0  # steps whose wait is known
        self._begin_ns: int | None = None  # ns: end of the last point, or begin of the first step
        # by group: (time ns, a value for each of `_GAUGES`, NaN = unknown)
        self._samples: dict[str, deque[tuple[float, ...]]] = {}
        self._trained_samples = 0.0  # samples; NaN where a batch's size is not known
        self._full_rates: dict[str, float] = {}  # GPU -> samples a second at its peak

    def add_samples(self, group: str, columns: Sequence[str], time_ns: np.ndarray, values: np.ndarray) -> None:
        """Add samples of one GPU; others are ignored. Call before the steps they belong to.

        Args:
            group: such as "gpu0", or "gpu0/utilization": the driver's own buffer.
            columns: names of the columns of `values`.
            time_ns: int64[samples].
            values: float[samples, columns].
        """
        gpu, _, part = group.partition("/")
        if not gpu.startswith("gpu") or part not in ("", "utilization"):
            return
        at = [columns.index(name) if name in columns else None for name in _GAUGES]
        if not any(place is not None for place in at):  # none of the values that scalars show
            return
        samples = self._samples.setdefault(group, deque(maxlen=100_000))
        for i, when in enumerate(time_ns.tolist()):
            row = (float("nan") if place is None else float(values[i, place]) for place in at)
            samples.append((when, *row))

    def add_steps(
        self,
        steps: dict[str, np.ndarray],
        sizes: np.ndarray | None = None,
        full_rates: Mapping[str, float] | None = None,
    ) -> list[tuple[int, dict[str, float], int]]:
        """Return the points that these rows of the `steps` table complete: (step, value by tag, time in ns).

        A point has the means since the one before; rows behind the last one count for the next.

        Args:
            steps: new rows.
            sizes: float64[rows], samples in their batches; NaN where one is not known. None = none is.
            full_rates: as of `ModelWork.rates`.
        """
        self._full_rates = dict(full_rates or {})
        numbers, start, duration = steps["step"].tolist(), steps["start_ns"], steps["duration_ns"]
        wait = steps["input_wait_ns"]
        if not numbers:
            return []
        if self._begin_ns is None:
            self._begin_ns = int(start[0])
        ends = self._completing(numbers)
        if sizes is None:
            sizes = np.full(len(numbers), np.nan)
        has_wait = wait >= 0
        # Of the rows of each point, and of the rest: their number, duration, wait, and rows with a wait.
        sums = [
            np.diff(np.append(0, np.cumsum(part))[[0, *ends, len(numbers)]]).tolist()
            for part in (np.ones(len(numbers), np.int64), duration, np.where(has_wait, wait, 0), has_wait)
        ]
        trained = [float(part.sum()) for part in np.split(sizes, ends)]
        # ns: the end of each point; None for the rest
        stops = [*(start + duration)[[end - 1 for end in ends]].tolist(), None]
        points = []
        for end, stop, size, count, took, waited, with_wait in zip([*ends, 0], stops, trained, *sums, strict=True):
            self._trained_samples += size
            self._steps += count
            self._duration_ns += took
            self._wait_ns += waited
            self._steps_with_wait += with_wait
            if stop is not None:
                points.append(self._point(numbers[end - 1], stop))
        return points

    def _completing(self, numbers: list[int]) -> list[int]:
        """Return the position after each row that completes a point.

        Args:
            numbers: the steps of the rows, ascending.
        """
        ends: list[int] = []
        while (at := bisect_left(numbers, self._next, ends[-1] if ends else 0)) < len(numbers):
            self._next = numbers[at] + self._stride(numbers[at] + 1)
            ends.append(at + 1)
        return ends

    def last_point(self, step: int, end_ns: int) -> list[tuple[int, dict[str, float], int]]:
        """Return the point of the last steps of a run, in a list; [] where all steps have one."""
        return [self._point(step, end_ns)] if self._steps else []

    def gpu_means(self, begin: int, end: int) -> dict[str, dict[str, float]]:
        """Return each GPU's means over [begin, end) ns, by gauge: in percent, bytes and milliwatts.

        Samples from before `begin` are dropped. Must be called in the order of time.
        """
        means_by_gpu: dict[str, dict[str, float]] = {}
        for group, samples in self._samples.items():
            gpu, _, buffer = group.partition("/")
            means, earlier = _means(samples, begin, end), means_by_gpu.get(gpu, {})
            # What a driver should not be polled for is in a buffer of its own.
            means_by_gpu[gpu] = means | earlier if buffer else earlier | means
        return means_by_gpu

    def _stride(self, step: int) -> int:
        """Return how many steps a point stands for at a step: more and more where no frequency is set."""
        if isinstance(self._freq, int):
            return self._freq
        return 1 << max(step // DENSE, 1).bit_length() - 1

    def _point(self, step: int, end: int) -> tuple[int, dict[str, float], int]:
        """Return (step, value by tag, time in ns) of the means since the point before, and begin the next point.

        Args:
            step: the last one of the point.
            end: when it ended, ns.
        """
        begin = self._begin_ns if self._begin_ns is not None else end
        step_ms = self._duration_ns / self._steps / 1e6
        values = {"gpu_util/step_time_ms": step_ms}
        if self._steps_with_wait:
            values["gpu_util/input_wait_ms"] = self._wait_ns / self._steps_with_wait / 1e6
        rate = 1e9 * self._trained_samples / self._duration_ns if self._duration_ns else float("nan")
        if rate > 0:  # not NaN
            values["gpu_util/samples_per_s"] = rate
        for gpu, means in self.gpu_means(begin, end).items():
            used, memory = means.get("utilization_pct"), means.get("memory_used_bytes")
            power = means.get("power_mw", means.get("power_energy_mw"))
            if used is not None:
                values[f"gpu_util/{gpu}/utilization_pct"] = used
                values[f"gpu_util/{gpu}/kernel_time_est_ms"] = used / 100 * step_ms
            if memory is not None:
                values[f"gpu_util/{gpu}/memory_used_mib"] = memory / 2**20
            if power is not None:
                values[f"gpu_util/{gpu}/power_w"] = power / 1e3
        for gpu, full in self._full_rates.items():
            mfu = mfu_of(rate, full) if rate > 0 else None
            if mfu is not None:
                values[f"gpu_util/{gpu}/mfu_pct"] = mfu
        self._begin_ns = end
        self._steps = self._duration_ns = self._wait_ns = self._steps_with_wait = 0
        self._trained_samples = 0.0
        return step, values, end


def _means(samples: deque[tuple[float, ...]], begin: int, end: int) -> dict[str, float]:
    """Return the time-weighted means over [begin, end) ns by gauge; one that is not known is left out.

    A sample holds until the next one, at most half a second. So a step shorter than the sampling interval, which has
    no sample of its own, gets the one that holds then.

    Args:
        samples: (time ns, a value for each of `_GAUGES`, NaN = unknown), in order; those that ended before `begin` are
            dropped.
    """
    while len(samples) > 1 and samples[1][0] <= begin:
        samples.popleft()
    totals = [0.0] * len(_GAUGES)
    weights = [0.0] * len(_GAUGES)
    for i, (when, *numbers) in enumerate(samples):
        if when >= end:
            break
        until = samples[i + 1][0] if i + 1 < len(samples) else when + 500_000_000
        duration_ns = min(until, end, when + 500_000_000) - max(when, begin)
        if duration_ns <= 0:
            continue
        for k, number in enumerate(numbers):
            if number == number:  # known (not NaN)
                totals[k] += number * duration_ns
                weights[k] += duration_ns
    sums = zip(_GAUGES, totals, weights, strict=True)
    return {name: total / weight for name, total, weight in sums if weight}
