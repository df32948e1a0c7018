"""A recorder's outputs: the recording's files, the scalars, and their diagnosis."""

from __future__ import annotations

import errno
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from gpu_util_callback.recorder.messages import reason_of, say
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recorder.work import ModelWork
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.segments import joined
from gpu_util_callback.recording.summary import Account
from gpu_util_callback.recording.work import mfu_of

__all__ = [
    "FLUSH_S",
    "Outputs",
    "ScalarPoints",
]

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
MOST_FLUSHES = 8  # whose rows wait for a diagnosis
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
        self._undiagnosed: list[tuple[Tables, list[Any]]] = []  # rows and samples of each flush
        self._next_diagnosis_ns = 0  # on the recording's clock
        self._diagnosis_ns: deque[int] = deque(maxlen=2)  # of processor time; a first one imports
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
            offset = self._offset
            self._scalars.points(
                (offset + step, values, when / 1e9) for step, values, when in points
            )
        except Exception as error:
            self._lose_scalars(error)

    def write_scalars(
        self, tables: Tables, work: ModelWork, last: tuple[int, int] | None = None
    ) -> None:
        """Write the scalars of new rows.

        Args:
            work: the sizes of their batches, and what the GPUs could do.
            last: (the last step, the end in ns), where no more rows will come.
        """
        if self._scalars is None:
            return
        points = []
        if "steps" in tables:
            steps = tables["steps"]
            sizes = work.sizes.of(steps) if work.sizes is not None else None
            points = self._points.add_steps(steps, sizes, work.rates)
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
        """Diagnose all rows so far; print what is newly found while training continues.

        The next diagnosis waits for some seconds, and where there are many spans, which take longer
        to find, in proportion.
        """
        if self._diagnosis is None:
            return
        try:
            self._undiagnosed.append((tables, samples))
            waits = now_ns < self._next_diagnosis_ns and not last
            if waits and len(self._undiagnosed) < MOST_FLUSHES:
                return
            new, self._undiagnosed = self._undiagnosed, []
            self._diagnosis.add(new)
            if waits:
                return
            began = time.thread_time_ns()
            found = self._diagnosis.result(facts, started_ns, now_ns, ended=last)
            self.update(diagnosis=found)
            self._diagnosis_ns.append(time.thread_time_ns() - began)
            if len(self._diagnosis_ns) > 1:
                pause_s = min(max(DIAGNOSIS_S, (now_ns - started_ns) / 4e9), SELDOM_S)
                pause_ns = max(1e9 * pause_s, min(self._diagnosis_ns) / DIAGNOSIS_SHARE)
                self._next_diagnosis_ns = now_ns + int(pause_ns)
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


class RunningDiagnosis:
    """Diagnosis that new rows are added to, with the account it rests on.

    Args:
        facts: the manifest's facts at the start.
        thresholds: the user's, or None.
    """

    def __init__(self, facts: Mapping[str, Any], thresholds: Mapping | None):
        from gpu_util_callback.diagnosis import Announcer, Diagnosis

        self._diagnosis = Diagnosis(facts, thresholds)
        self._account = Account()
        self._announcer = Announcer()

    def add(self, parts: Sequence[tuple[Tables, Iterable[Any]]]) -> None:
        """Add new rows by table, and new sample blocks, of one flush or several."""
        tables, _ = joined([(rows, {}) for rows, _ in parts])
        if "steps" in tables:
            self._account.add_steps(tables["steps"])
        if "phases" in tables:
            self._account.add_phases(tables["phases"])
        groups: dict[str, dict[str, np.ndarray]] = {}
        for block in chain.from_iterable(blocks for _, blocks in parts):
            columns = {name: block.values[:, i] for i, name in enumerate(block.columns)}
            columns["time_ns"] = block.time_ns
            known = groups.get(block.group)
            if known is not None and known.keys() == columns.keys():
                columns = {name: np.concatenate([known[name], columns[name]]) for name in columns}
            elif known is not None:  # the sampled columns have changed in between
                self._diagnosis.add({}, {block.group: known})
            groups[block.group] = columns
        self._diagnosis.add(tables, groups)

    def result(
        self, facts: Mapping[str, Any], start_ns: int, now_ns: int, ended: bool
    ) -> dict[str, Any]:
        """Return the diagnosis so far, as the manifest keeps it."""
        account = self._account.result(start_ns, now_ns)
        return self._diagnosis.result(facts=facts, account=account, now_ns=now_ns, ended=ended)

    def news(self, found: Mapping[str, Any]) -> list[str]:
        """Return a line per cause, once, when it is established and has cost enough to matter."""
        return self._announcer.lines(found)


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
        self._steps = 0
        self._duration = self._wait = 0
        self._waited = 0
        self._begin: int | None = None
        self._samples: dict[str, deque[tuple[float, ...]]] = {}
        self._trained = 0.0  # samples; NaN where a batch's size is not known
        self._full_rates: dict[str, float] = {}

    def add_samples(
        self, group: str, columns: Sequence[str], time_ns: np.ndarray, values: np.ndarray
    ) -> None:
        """Add samples of one GPU; others are ignored. Call before the steps they belong to."""
        gpu, _, part = group.partition("/")
        if not gpu.startswith("gpu") or part not in ("", "utilization"):
            return
        at = [columns.index(name) if name in columns else None for name in _GAUGES]
        if not any(place is not None for place in at):
            return
        kept = self._samples.setdefault(group, deque(maxlen=100_000))
        for i, when in enumerate(time_ns.tolist()):
            row = (float("nan") if place is None else float(values[i, place]) for place in at)
            kept.append((when, *row))

    def add_steps(
        self,
        steps: dict[str, np.ndarray],
        sizes: np.ndarray | None = None,
        full_rates: Mapping[str, float] | None = None,
    ) -> list[tuple[int, dict[str, float], int]]:
        """Return the points that these rows of the `steps` table complete.

        Args:
            steps: new rows.
            sizes: samples in their batches; NaN where one is not known.
            full_rates: as of `ModelWork.rates`.
        """
        self._full_rates = dict(full_rates or {})
        numbers, start, duration = steps["step"].tolist(), steps["start_ns"], steps["duration_ns"]
        wait = steps["input_wait_ns"]
        if not numbers:
            return []
        if self._begin is None:
            self._begin = int(start[0])
        ends = self._completing(numbers)
        if sizes is None:
            sizes = np.full(len(numbers), np.nan)
        seen = wait >= 0
        sums = [
            np.diff(np.append(0, np.cumsum(part))[[0, *ends, len(numbers)]]).tolist()
            for part in (np.ones(len(numbers), np.int64), duration, np.where(seen, wait, 0), seen)
        ]
        trained = [float(part.sum()) for part in np.split(sizes, ends)]
        stops = [*(start + duration)[[end - 1 for end in ends]].tolist(), None]
        points = []
        for end, stop, size, count, took, waited, with_wait in zip(
            [*ends, 0], stops, trained, *sums, strict=True
        ):
            self._trained += size
            self._steps += count
            self._duration += took
            self._wait += waited
            self._waited += with_wait
            if stop is not None:
                points.append(self._point(numbers[end - 1], stop))
        return points

    def _completing(self, numbers: list[int]) -> list[int]:
        """Return how many of these steps there are up to each that completes a point."""
        ends: list[int] = []
        while (at := bisect_left(numbers, self._next, ends[-1] if ends else 0)) < len(numbers):
            self._next = numbers[at] + self._stride(numbers[at] + 1)
            ends.append(at + 1)
        return ends

    def rest(self, step: int, end_ns: int) -> list[tuple[int, dict[str, float], int]]:
        """Return the point of the steps not yet covered, at the end of a run."""
        return [self._point(step, end_ns)] if self._steps else []

    def gpu_means(self, begin: int, end: int) -> dict[str, dict[str, float]]:
        """Return each GPU's means over [begin, end): in percent, bytes and milliwatts.

        Samples from before `begin` are dropped.
        """
        found: dict[str, dict[str, float]] = {}
        for group, kept in self._samples.items():
            gpu, _, buffer = group.partition("/")
            means, known = _means(kept, begin, end), found.get(gpu, {})
            # What a driver should not be polled for is in a buffer of its own.
            found[gpu] = means | known if buffer else known | means
        return found

    def _stride(self, step: int) -> int:
        if isinstance(self._freq, int):
            return self._freq
        return 1 << max(step // DENSE, 1).bit_length() - 1

    def _point(self, step: int, end: int) -> tuple[int, dict[str, float], int]:
        begin = self._begin if self._begin is not None else end
        step_ms = self._duration / self._steps / 1e6
        values = {"gpu_util/step_time_ms": step_ms}
        if self._waited:
            values["gpu_util/input_wait_ms"] = self._wait / self._waited / 1e6
        rate = 1e9 * self._trained / self._duration if self._duration else float("nan")
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
        self._begin = end
        self._steps = self._duration = self._wait = self._waited = 0
        self._trained = 0.0
        return step, values, end


def _means(kept: deque[tuple[float, ...]], begin: int, end: int) -> dict[str, float]:
    """Return the time-weighted means over [begin, end); a sample holds until the next one.

    A step shorter than the sampling interval has no sample of its own: the one that holds then is
    used only where it is at most half a second old.
    """
    while len(kept) > 1 and kept[1][0] <= begin:
        kept.popleft()
    totals = [0.0] * len(_GAUGES)
    weights = [0.0] * len(_GAUGES)
    for i, (when, *numbers) in enumerate(kept):
        if when >= end:
            break
        until = kept[i + 1][0] if i + 1 < len(kept) else when + 500_000_000
        held = min(until, end, when + 500_000_000) - max(when, begin)
        if held <= 0:
            continue
        for k, number in enumerate(numbers):
            if number == number:
                totals[k] += number * held
                weights[k] += held
    sums = zip(_GAUGES, totals, weights, strict=True)
    return {name: total / weight for name, total, weight in sums if weight}
