"""The recorder: writes down a fit from inside the training process, without being in its way."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_util_callback.frameworks.assemble import Assembler
from gpu_util_callback.frameworks.base import Adapter
from gpu_util_callback.frameworks.keras_callbacks import HookSums
from gpu_util_callback.frameworks.keras_fit import FitWatch
from gpu_util_callback.frameworks.pipeline_readings import PipelineReadings
from gpu_util_callback.frameworks.timeline import Timeline
from gpu_util_callback.gpu_samples import GpuSamples
from gpu_util_callback.job import job_facts, trial_name
from gpu_util_callback.messages import reason_of, say, verdict, warn
from gpu_util_callback.profiler_windows import ProfilerWindows
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.scalar_points import ScalarPoints
from gpu_util_callback.settings import Settings

__all__ = ["Recorder", "close_left_over"]

log = logging.getLogger("gpu_util_callback")

# A flush and what the training thread still holds (timeline.DRAIN_EVERY_NS) stay below 2 s.
FLUSH_S = 1.5
REMOTE_FLUSH_S = 30.0
CLOSE_S = 5.0
WINDOWS_S = 30.0  # how long the end of a recording waits for windows to be read
IDLE_S = 60.0  # where the fit cannot be watched: no step for so long, and sampling stops

_active: weakref.WeakSet[Recorder] = weakref.WeakSet()
_fits: dict[str, int] = {}  # log_dir -> fits of this process so far


@dataclass
class Recorder:
    """Owns a recording: writer, sampler, scalars, diagnosis and the one thread that runs them.

    The training thread only appends to `timeline`. Nothing raised in here reaches it: a source
    that fails is named once, switched off, and listed in the recording's `unavailable`.

    Args:
        settings: the user's wishes.
        adapter: the framework's.
        facts: what the caller knows of the fit.
    """

    settings: Settings
    adapter: Adapter
    facts: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    timeline: Timeline = field(init=False)
    on_over: Callable[[], None] = field(default=lambda: None)  # puts all wrappers back
    timeline_type: type[Timeline] = Timeline

    def __post_init__(self) -> None:
        self.timeline = self.timeline_type(self._drain_train, self._drain_test)
        self.hook_sums: list[HookSums] = []
        self.watch = FitWatch(None)
        self.status = ""  # "", then "ended" or "interrupted"
        self.path: str | None = None
        self.unavailable: list[dict[str, str]] = []
        self._assembler: Assembler | None = None
        self._writer: Any = None
        self._scalars: Any = None
        self._points = ScalarPoints(self.settings.scalar_freq)
        self._offset = 0
        self._diagnosis: Any = None
        self._told: set[str] = set()
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._started_ns = 0
        self._ended_ns = 0
        self._next_flush = 0.0
        self._gpus = GpuSamples(self.clock, self.fail)
        self._stages = PipelineReadings(self.adapter, self.clock, self.fail)
        self._hooks_us: float | None = None
        self.windows: ProfilerWindows | None = None  # where profiler windows are wanted
        self._paused = False

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    # ---- the training thread -------------------------------------------------------------

    def start(self, watch: FitWatch) -> None:
        """Begin to record. Returns at once: all that may take time happens on the thread."""
        self.watch = watch
        key = os.path.abspath(self.settings.log_dir)  # noqa: PTH100 - may be a URL
        index = _fits[key] = _fits.get(key, -1) + 1
        self.facts["fit_index"] = index
        self._assembler = Assembler(
            self.clock.offset_ns,
            shapes=self.adapter.shapes,
            shapes_compile=self.adapter.shapes_compile,
        )
        _active.add(self)
        self._thread = threading.Thread(target=self._work, name="gpu-util-recorder", daemon=True)
        self._thread.start()
        trial = trial_name()
        if trial is not None:
            self.facts["trial"] = trial
        self._started_ns = self.clock.now()  # from here on time counts; our set-up does not
        self.facts["started_ns"] = self._started_ns
        self._begun.set()

    def end(self, status: str, deadline_s: float = CLOSE_S) -> None:
        """Close the recording: write what is left, by a deadline. May be called more than once.

        Args:
            status: "ended", or "interrupted", which ends where the training was last seen.
            deadline_s: how long the caller waits; 0 = not at all.
        """
        with self._lock:
            first = not self.status
            if first:
                self.status = status
                now = self.clock.now()
                seen = self.clock.from_perf(self.timeline.latest())
                self._ended_ns = now if status == "ended" else min(now, seen)
        if first:
            try:
                self.on_over()
                self.timeline.finish()
            except Exception as error:
                self.fail("the last steps", error)
            self._stop.set()
        thread = self._thread
        if deadline_s and thread is not None and thread is not threading.current_thread():
            thread.join(deadline_s)
            if thread.is_alive() and first and self.settings.report:
                say(
                    f"the recording's last {FLUSH_S:g} s are still being written to "
                    f"{self.settings.log_dir} after {deadline_s:g} s; going on without waiting"
                )

    @property
    def off(self) -> bool:
        """Whether nothing is recorded (any more), so that the training thread can be left alone."""
        return bool(self.status)

    def fail(self, source: str, error: BaseException | str, cure: str = "") -> None:
        """A source has failed: say so once and list it."""
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        reason = " ".join(str(reason).split())
        if source in self._told:
            return
        self._told.add(source)
        self.unavailable.append({"source": source, "reason": reason, "cure": cure})
        warn(f"{source} is off", reason, cure)
        log.debug("gpu_util_callback: %s", source, exc_info=not isinstance(error, str))

    # ---- the recorder's thread -----------------------------------------------------------

    def _work(self) -> None:
        try:
            self._begun.wait()
            self._open()
            pause = 0.5  # the first look comes early
            while not self._stop.wait(pause):
                pause = FLUSH_S
                self._tick()
                if self.watch.over():
                    self.end("interrupted")
        except Exception as error:  # a fault of ours
            self.fail("the recording", error)
        finally:
            try:
                self._close()
            except Exception as error:
                self.fail("the recording", error)
            _active.discard(self)
            self._closed.set()

    def _flush_s(self) -> float:
        return REMOTE_FLUSH_S if "://" in self.settings.log_dir else FLUSH_S

    def _open(self) -> None:
        try:
            rendezvous = self.adapter.rendezvous()
            self.facts.update(job_facts(self.settings.job, framework=rendezvous))
        except Exception as error:
            self.fail("the job's name", error)
        self._gather_facts()
        try:
            from gpu_util_callback.summaries import next_step_offset

            # Looked up before our own recording stands among the earlier ones.
            self._offset = next_step_offset(self.settings.log_dir)
            self.facts["scalar_step_offset"] = self._offset
        except Exception as error:
            self.fail("the scalars' first step", error)
        try:
            from gpu_util_callback.recording.writer import RecordingWriter

            self._writer = RecordingWriter(
                self.settings.log_dir,
                self.facts,
                clock=self.clock,
                redact=self.settings.redact,
                flush_s=self._flush_s(),
            )
            self.path = self._writer.path
        except Exception as error:
            self.fail(
                "the recording",
                f"{self.settings.log_dir} cannot be written to ({reason_of(error)}); "
                "training goes on without it",
                "give another log_dir",
            )
            self.end("interrupted")
            return
        try:
            from gpu_util_callback.running_diagnosis import RunningDiagnosis

            self._diagnosis = RunningDiagnosis(self.facts, self.settings.thresholds)
        except Exception as error:
            self.fail("the diagnosis", error)
        self._gpus.start(self.adapter, self.settings.sample_hz)
        self._start_scalars()

    def _gather_facts(self) -> None:
        try:
            for key, value in self.adapter.facts().items():
                known = self.facts.get(key)
                self.facts[key] = {**value, **known} if isinstance(known, dict) else value
        except Exception as error:
            self.fail("facts about the model", error)

    def _start_scalars(self) -> None:
        try:
            from gpu_util_callback.summaries import ScalarWriter

            settings = self.settings
            rank = int(self.facts.get("rank") or 0)
            self._scalars = ScalarWriter(settings.log_dir, rank, redact=settings.redact)
            self._scalars.marker()
        except Exception as error:
            self.fail("scalars", error)

    def _tick(self, last: bool = False) -> None:
        """Take what the training thread and the sampler left, diagnose, write."""
        samples = self._gpus.take()
        for block in samples:
            self._points.add_samples(block.group, block.columns, block.time_ns, block.values)
        tables = self._take_rows(last)
        self._take_windows(tables, samples)
        stages = self._stages.read(self._assembler.steps if self._assembler else 0, last)
        if stages is not None:
            tables["pipeline"] = stages
        self._write_scalars(tables, last)
        if self._writer is not None:
            try:
                for table, rows in tables.items():
                    self._writer.append(table, rows)
                for block in samples:
                    self._writer.append_samples(
                        block.group, block.columns, block.time_ns, block.values
                    )
            except Exception as error:
                self.fail("the recording", error)
        self._diagnose(tables, samples, last)
        self._update_facts()
        if last:
            self._writer_close()
        elif self._writer is not None and time.monotonic() >= self._next_flush:
            try:
                self._next_flush = time.monotonic() + self._flush_s() - FLUSH_S / 2
                self._writer.flush()
            except Exception as error:
                self.fail(
                    "writing the recording",
                    f"{self.settings.log_dir}: {reason_of(error)}; it is tried again",
                    "make room, or give another log_dir",
                )
        self._pause_when_idle()

    def _take_rows(self, last: bool) -> dict[str, dict[str, Any]]:
        queue = self.timeline.queue
        items: list[Any] = []
        while queue:
            items.append(queue.popleft())
        for sums in self.hook_sums:
            items += sums.take(self.timeline.calls)
        tables: dict[str, dict[str, Any]] = {}
        if self._assembler is None:
            return tables
        try:
            for name, parts in self._assembler.add(items, last).items():
                tables[name] = {
                    column: np.concatenate([part[column] for part in parts]) for column in parts[0]
                }
        except Exception as error:
            self.fail("step times", error)
        return tables

    def _take_windows(self, tables: dict[str, dict[str, Any]], samples: list[Any]) -> None:
        if self.windows is None:
            return
        try:
            for result in self.windows.drain():
                result.add_to(tables, samples)
                self.facts.setdefault("windows", []).append(result.facts())
                if self._scalars is not None:
                    for step, values, when in result.points():
                        self._scalars.scalars(self._offset + step, values, when / 1e9)
        except Exception as error:
            self.fail("profiler windows", error)
            self.windows = None

    def _write_scalars(self, tables: dict[str, dict[str, Any]], last: bool) -> None:
        if self._scalars is None:
            return
        try:
            points = self._points.add_steps(tables["steps"]) if "steps" in tables else []
            if last and self._assembler is not None:
                points += self._points.rest(self._assembler.steps - 1, self._ended_ns)
            for step, values, when in points:
                self._scalars.scalars(self._offset + step, values, when / 1e9)
            self._scalars.flush()
        except Exception as error:
            self.fail("scalars", f"{self.settings.log_dir}: {reason_of(error)}", "make room")
            self._scalars = None

    def _diagnose(self, tables: dict, samples: list[Any], last: bool) -> None:
        if self._diagnosis is None:
            return
        try:
            now = self._ended_ns or self.clock.now()
            self._diagnosis.add(tables, samples)
            found = self._diagnosis.result(self.facts, self._started_ns, now, ended=last)
            if self._writer is not None:
                self._writer.update(diagnosis=found)
            if self.settings.report and not last:
                for line in self._diagnosis.news(found):
                    say(line)
        except Exception as error:
            self.fail("the diagnosis", error)
            self._diagnosis = None

    def say_verdict(self) -> None:
        """Two lines about where the time went, if the recording was closed in time."""
        if self.settings.report and self._closed.is_set() and self.path is not None:
            verdict(self.path, self.settings.thresholds)

    def _update_facts(self) -> None:
        if self._writer is None:
            return
        try:
            self._gather_late_facts()
            steps = self._assembler.steps if self._assembler is not None else 0
            wall = max((self._ended_ns or self.clock.now()) - self._started_ns, 1)
            overhead: dict[str, Any] = {
                "callback_us_per_step": self._own_us(steps),
                "recorder_cpu_pct": round(100e9 * time.thread_time() / wall, 3),
                "windows_s": 0.0,
            }
            facts: dict[str, Any] = {}
            unavailable = list(self.unavailable)
            for source, reason, cure in self.adapter.problems():
                unavailable.append({"source": source, "reason": reason, "cure": cure})
            if self.windows is not None:
                overhead["windows_s"] = round(self.windows.cost_s, 4)
                facts["windows"] = self.facts.get("windows", [])
                unavailable += self.windows.unavailable
            facts["gpus"] = self._gpus.gpus
            facts.update(self._gpus.facts(self.facts.get("framework") or {}))
            unavailable += self._gpus.unavailable
            overhead.update(self._gpus.overhead)
            facts["overhead"] = overhead
            facts["unavailable"] = unavailable
            if self._ended_ns:
                facts["ended_ns"] = self._ended_ns
            self.facts.update(facts)
            self._writer.update(
                **{**facts, "fit": self.facts.get("fit"), "model": self.facts.get("model")}
            )
        except Exception as error:
            self.fail("facts about the run", error)

    def _own_us(self, steps: int) -> float | None:
        """Our own Python on the training thread per step: hooks as measured here, and drains."""
        if not steps:
            return None
        if self._hooks_us is None and self.status:
            self._hooks_us = self.adapter.own_us()
        if self._hooks_us is None:
            return None
        return round(self._hooks_us + self.timeline.drain_ns / steps / 1e3, 3)

    def _gather_late_facts(self) -> None:
        """A model that was not built when the fit began is by now."""
        model = self.facts.get("model") or {}
        if model.get("parameters") is None and self._assembler and self._assembler.steps:
            self._gather_facts()

    def _pause_when_idle(self) -> None:
        """Nobody may be training any more where the fit cannot be watched."""
        if self.watch.known:
            return
        idle = (time.perf_counter_ns() - self.timeline.last_event) / 1e9
        if idle > IDLE_S and not self._paused:
            self.end("interrupted")
            self._paused = True

    def _close(self) -> None:
        self._gpus.stop()
        if self.windows is not None:
            if self.windows.busy:
                self._tick()  # reading a window may take a while: write the rest first
            self.windows.close(WINDOWS_S)
        self._tick(last=True)

    def _writer_close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close(self.status or "interrupted")
            except Exception as error:
                self.fail(
                    "writing the recording",
                    f"{self.settings.log_dir}: {reason_of(error)}; its end is missing",
                    "make room, or give another log_dir",
                )
        if self._scalars is not None:
            try:
                self._scalars.close()
            except Exception as error:
                self.fail("scalars", error)

    def _drain_train(self) -> Any:
        try:
            return self.adapter.drain()
        except Exception as error:
            self.fail("input wait", error)
            return None

    def _drain_test(self) -> Any:
        try:
            return self.adapter.drain_test()
        except Exception as error:
            self.fail("input wait of validation", error)
            return None


def close_left_over(keep: Callable[[Recorder], bool] = lambda recorder: False) -> None:
    """Close the recordings of fits that are over but never said so."""
    for recorder in list(_active):
        if recorder._pid == os.getpid() and not keep(recorder):
            recorder.end("interrupted", deadline_s=2.0)


atexit.register(close_left_over)
