"""A recorder's outputs: the recording's files, the scalars, and their diagnosis."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpu_util_callback.recorder.messages import reason_of, say
from gpu_util_callback.recorder.scalars import ScalarPoints
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording.clock import Clock

__all__ = ["FLUSH_S", "Outputs"]

# Below 2 s with the time that a flush takes and the pause before it.
FLUSH_S = 1.5
REMOTE_FLUSH_S = 30.0
# Seconds between the attempts to write a recording's end, where writing fails. Only the end of
# the process waits for them, and it cuts them short.
RETRIES_S = (0.5, 2.0, 5.0)
FULL = (errno.ENOSPC, errno.EDQUOT)

Tables = dict[str, dict[str, Any]]


class Outputs:
    """The files of one recorder. All methods run on the recorder's thread and never raise.

    Args:
        settings: the user's settings.
        clock: the recording's.
        fail: called with (source, error or reason, cure) for each failure.
        write_failed: called after each write of the recording that failed.

    Attributes:
        failing: whether the last write of the recording failed.
        in_a_hurry: set when the process ends: the next attempt to write the end is the last.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        fail: Callable[..., None],
        write_failed: Callable[[], None] = lambda: None,
    ):
        self.path: str | None = None  # of the recording
        self.failing = False
        self.sealed = False  # whether the recording was closed properly
        self.in_a_hurry = threading.Event()
        self._write_failed = write_failed
        self._settings = settings
        self._clock = clock
        self._fail = fail
        self._writer: Any = None
        self._scalars: Any = None
        self._points = ScalarPoints(settings.scalar_freq)
        self._offset = 0  # the scalars' step of this fit's first step
        self._diagnosis: Any = None
        self._next_flush = 0.0

    @property
    def recording(self) -> bool:
        """Return whether there is a recording to write to."""
        return self._writer is not None

    def open_recording(self, facts: dict[str, Any]) -> bool:
        """Begin the recording; add `scalar_step_offset` to the facts. False = there is none."""
        log_dir = self._settings.log_dir
        try:
            from gpu_util_callback.recording.event_files import next_step_offset

            # Looked up before our own recording is among the earlier ones.
            self._offset = facts["scalar_step_offset"] = next_step_offset(log_dir)
        except Exception as error:
            self._fail("the scalars' first step", error)
        try:
            from gpu_util_callback.recording.writer import RecordingWriter

            self._writer = RecordingWriter(
                log_dir,
                facts,
                clock=self._clock,
                redact=self._settings.redact,
                flush_s=self._flush_s(),
            )
            self.path = self._writer.path
        except Exception as error:
            self._fail(
                "the recording",
                f"cannot write to {log_dir} ({reason_of(error)}); training continues without it",
                "give another log_dir",
            )
        return self.recording

    def reopen(self) -> None:
        """Reopen a closed recording."""
        self.sealed = False
        self._writer.reopen()
        if self._scalars is not None:
            try:
                self._scalars.reopen()
            except Exception as error:
                self._lose_scalars(error)
        self.flush(now=True)  # it is live

    def release(self) -> None:
        """Let go of what only a recording that goes on needs."""
        self._writer = self._diagnosis = self._scalars = None

    def open_others(self, facts: dict[str, Any]) -> None:
        """Begin the diagnosis and the scalars."""
        settings = self._settings
        try:
            from gpu_util_callback.recorder.diagnosis import RunningDiagnosis

            self._diagnosis = RunningDiagnosis(facts, settings.thresholds)
        except Exception as error:
            self._fail("the diagnosis", error)
        try:
            from gpu_util_callback.recording.event_files import ScalarWriter

            rank = int(facts.get("rank") or 0)
            self._scalars = ScalarWriter(settings.log_dir, rank, redact=settings.redact)
            self._scalars.marker()
        except Exception as error:
            self._fail("scalars", error)

    def _flush_s(self) -> float:
        return REMOTE_FLUSH_S if "://" in self._settings.log_dir else FLUSH_S

    def append(self, tables: Tables, samples: list[Any]) -> None:
        """Append new rows to the recording."""
        for block in samples:
            self._points.add_samples(block.group, block.columns, block.time_ns, block.values)
        if self._writer is None:
            return
        try:
            for table, rows in tables.items():
                self._writer.append(table, rows)
            for block in samples:
                self._writer.append_samples(block.group, block.columns, block.time_ns, block.values)
        except Exception as error:
            self._fail("the recording", error)

    def add_points(self, points: Iterable[tuple[int, dict[str, float], int]]) -> None:
        """Write scalars given as (the fit's step, values, time in ns)."""
        if self._scalars is None:
            return
        try:
            for step, values, when in points:
                self._scalars.scalars(self._offset + step, values, when / 1e9)
        except Exception as error:
            self._lose_scalars(error)

    def write_scalars(self, tables: Tables, last: tuple[int, int] | None = None) -> None:
        """Write the scalars of new rows.

        Args:
            last: (the last step, the end in ns), where no more rows will come.
        """
        if self._scalars is None:
            return
        points = self._points.add_steps(tables["steps"]) if "steps" in tables else []
        if last is not None:
            points += self._points.rest(*last)
        self.add_points(points)
        try:
            if self._scalars is not None:
                self._scalars.flush()
        except Exception as error:
            self._lose_scalars(error)

    def _lose_scalars(self, error: Exception) -> None:
        where = self._settings.log_dir
        self._fail("scalars", f"{where}: {reason_of(error)}", self._cure(error))
        self._scalars = None

    def diagnose(
        self,
        tables: Tables,
        samples: list[Any],
        facts: dict[str, Any],
        started_ns: int,
        now_ns: int,
        last: bool,
    ) -> None:
        """Diagnose all rows so far; print what is newly found while training continues."""
        if self._diagnosis is None:
            return
        try:
            self._diagnosis.add(tables, samples)
            found = self._diagnosis.result(facts, started_ns, now_ns, ended=last)
            self.update(diagnosis=found)
            if self._settings.report and not last:
                for line in self._diagnosis.news(found):
                    say(line)
        except Exception as error:
            self._fail("the diagnosis", error)
            self._diagnosis = None

    def update(self, **facts: Any) -> None:
        """Update facts of the manifest, written with the next flush."""
        if self._writer is not None:
            self._writer.update(**facts)

    def flush(self, now: bool = False) -> None:
        """Write what was appended, if it is due (or `now`)."""
        if self._writer is None or (not now and time.monotonic() < self._next_flush):
            return
        try:
            self._next_flush = time.monotonic() + self._flush_s() - FLUSH_S / 2
            self._writer.flush()
            self.failing = False
        except Exception as error:
            self._fail(
                "writing the recording",
                f"{self._settings.log_dir}: {reason_of(error)}; retrying",
                self._cure(error),
            )
            self._has_failed()

    def _has_failed(self) -> None:
        self.failing = True
        self._write_failed()

    def _cure(self, error: Exception) -> str:
        """Return what to do where writing to log_dir failed."""
        if isinstance(error, OSError) and error.errno in FULL:
            return "make room, or give another log_dir"
        if "://" in self._settings.log_dir:
            return "check the network and this process's credentials, or give another log_dir"
        return "make sure that this process may write there, or give another log_dir"

    def close(self, status: str) -> None:
        """Seal everything. Where that fails it is retried for some seconds."""
        if self._writer is not None:
            self._seal(status)
        if self._scalars is not None:
            try:
                self._scalars.close()
            except Exception as error:
                self._fail("scalars", error)

    def _seal(self, status: str) -> None:
        last = False
        for pause in (*RETRIES_S, None):
            try:
                self._writer.close(status)
                self.failing, self.sealed = False, True
                return
            except Exception as error:
                self._has_failed()
                if pause is None or last:
                    self._fail(
                        "the recording's end",
                        f"{self._settings.log_dir}: {reason_of(error)}; it is missing",
                        self._cure(error),
                    )
                    return
            last = self.in_a_hurry.wait(pause)
