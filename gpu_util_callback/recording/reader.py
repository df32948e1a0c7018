"""The reader of one recording: lazily, sizes checked, and around whatever is damaged."""

# Paths may be URLs.
# ruff: noqa: PTH119

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.account import account
from gpu_util_callback.recording.container import MAX_FILE_BYTES, Container, Damaged
from gpu_util_callback.recording.manifest import ManifestError, NewerFormat
from gpu_util_callback.recording.overview import Overview
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segment_list import SegmentInfo, list_segments
from gpu_util_callback.recording.segments import Segment, concatenate, empty_column
from gpu_util_callback.recording.storage import Storage
from gpu_util_callback.recording.summary import Summary

__all__ = ["Problem", "Recording"]


@dataclass(frozen=True)
class Problem:
    """Something that could not be read: where, and in one line what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Recording:
    """One recording: what one process recorded during one fit.

    Tables are dictionaries of numpy arrays, read on first use: `recording.steps["duration_ns"]`.
    An integer that is absent is -1 (`schema.ABSENT_INT`), a float NaN, a text "". What is damaged
    is left out and named in `problems`.

    Attributes:
        run: name of the TensorBoard run it belongs to, "." for the log directory itself.
        id: unique within the log directory, and safe in URLs.
        path, folder: where it is, and the last part of that.
        session: recordings with the same one were made together (ranks of one job).
        facts: everything the manifest says.
        problems: what could not be read, so far.
    """

    def __init__(self, storage: Storage, path: str, run: str = ".", id: str | None = None):
        self._storage = storage
        self.path = path
        self.folder = os.path.basename(path.rstrip("/"))
        self.run = run
        self.id = id or f"{run}/{self.folder}"
        self.session = self.folder
        self.facts: dict[str, Any] = {}
        self._problems: dict[str, Problem] = {}
        self._lock = threading.RLock()
        self._stamp: tuple | None = None
        self._changed_at: float | None = None  # when we saw the manifest change, if ever
        self._top_bytes: bytes | None = None
        self._infos: list[SegmentInfo] | None = None
        self._whole: dict[str, tuple[int, dict[str, np.ndarray]]] = {}
        self._cache: dict[str, Any] = {}
        self.refresh()

    # --- what it is -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Look at the manifest again; True if the recording changed since (cheap when not).

        Raises: NewerFormat where a newer version wrote it.
        """
        with self._lock:
            path = self._storage.join(self.path, "manifest.json")
            try:
                stamp = self._storage.stamp(path)
                if stamp == self._stamp and stamp:
                    return False
                data = self._storage.read(path, manifests.MAX_BYTES)
                facts = manifests.parse(data)
            except NewerFormat:
                raise
            except (OSError, ManifestError) as error:
                return self._without_manifest(error)
            self._problems.pop(self.path, None)
            self._problems.pop(path, None)
            changed = facts != self.facts
            self._stamp = stamp
            if changed:
                if self.facts:
                    self._changed_at = time.monotonic()
                if facts.get("sealed") != self.facts.get("sealed"):
                    self._top_bytes = None
                self.facts = facts
                self._infos = None
                self._cache.clear()
            return changed

    def _without_manifest(self, error: Exception) -> bool:
        path = self._storage.join(self.path, "manifest.json")
        known = self.path in self._problems
        if self._is_deleted():
            self._infos = None
            self._cache.clear()
            return not known
        message = str(error) if isinstance(error, ManifestError) else _reason(error)
        if isinstance(error, FileNotFoundError):
            message = "manifest.json is missing"
        before = self._problems.get(path)
        self._problem(path, f"{message}; showing what the segments hold")
        self._infos = None
        self._cache.clear()
        return before != self._problems[path]

    @property
    def status(self) -> str:
        """ "live", "ended", "interrupted" or "lost" (no heartbeat, or the process is gone)."""
        status = self.facts.get("status")
        if status in ("ended", "interrupted"):
            return status
        if status != "live":
            return "lost"
        try:
            age = self._storage.age_s(self._storage.join(self.path, "manifest.json"), time.time())
        except OSError:
            return "lost"
        if age is None and self._changed_at is not None:  # a remote store: what we saw ourselves
            age = time.monotonic() - self._changed_at
        return "lost" if manifests.lost(self.facts, age) else "live"

    @property
    def revision(self) -> str:
        """Changes whenever something that is shown may have changed."""
        return f"{self.facts.get('flushes', 0)}{self.status[:2]}"

    @property
    def problems(self) -> list[Problem]:
        with self._lock:
            found = list(self._problems.values())
        dropped = self.facts.get("dropped_rows")
        if dropped:
            message = f"{dropped} rows were lost while the log directory could not be written"
            found.append(Problem(self.path, message))
        return found

    @property
    def stored(self) -> dict[str, Any]:
        """The recorder's own diagnosis: rules_version, thresholds, verdict, findings, spans."""
        stored = self.facts.get("diagnosis")
        if isinstance(stored, dict):
            return stored
        keys = ("rules_version", "thresholds", "verdict", "findings", "spans")
        return {key: self.facts[key] for key in keys if key in self.facts}

    @property
    def account(self) -> dict[str, Any]:
        """{"wall_s", "time_s": {category: s}}: the host account, as `account.Account` makes it."""
        stored = self.facts.get("account")
        if isinstance(stored, dict) and isinstance(stored.get("time_s"), dict):
            return stored
        return account(self.steps, self.phases, self.start_ns, self.end_ns)

    @property
    def overview(self) -> Overview:
        """The whole recording in a thousand buckets; treat it as read-only.

        Takes reading `overview.npz` and whatever segments are newer than it: the open one.
        """
        return self._cached("top", self._top)[0]

    @property
    def summary(self) -> dict[str, Any]:
        """Distributions of every flushed row: {"steps" or group: {column: {"mean", "p50", …}}}.

        Quantiles are within 1 %. Like `overview`, it reads no more than the newest segment.
        """
        return self._cached("summary", lambda: self._cached("top", self._top)[1].result())

    @property
    def start_ns(self) -> int:
        start = self.facts.get("started_ns")
        if isinstance(start, int):
            return start
        return self._cached("start", lambda: self._origin() or self._extent()[0])

    @property
    def end_ns(self) -> int:
        """When it ended, or the last heartbeat."""
        for fact in ("ended_ns", "heartbeat_ns"):
            end = self.facts.get(fact)
            if isinstance(end, int):
                return end
        return self._cached("end", lambda: self._extent()[1])

    @property
    def rank(self) -> int | None:
        """Which worker of its job recorded it."""
        rank = self.facts.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def step_count(self) -> int:
        """Rows of the steps table, without reading it."""
        rows = self.facts.get("rows")
        if isinstance(rows, dict) and isinstance(rows.get("steps", 0), int):
            return rows.get("steps", 0)
        return len(self.steps["step"])

    def _origin(self) -> int:
        """The start as the overview has it, 0 without one."""
        try:
            origin = Container(self._stored_top() or b"").index.get("origin_ns")
        except Damaged:
            return 0
        return origin if isinstance(origin, int) else 0

    def _extent(self) -> tuple[int, int]:
        steps = self.steps
        times = [group["time_ns"] for group in self.samples.values()]
        starts = [t[0] for t in (steps["start_ns"], *times) if len(t)]
        ends = [t[-1] for t in times if len(t)]
        if len(steps["step"]):
            ends.append(steps["start_ns"][-1] + steps["duration_ns"][-1])
        return int(min(starts, default=0)), int(max(ends, default=0))

    # --- its tables -------------------------------------------------------------------------------

    @property
    def steps(self) -> dict[str, np.ndarray]:
        return self.table("steps")

    @property
    def phases(self) -> dict[str, np.ndarray]:
        return self.table("phases")

    @property
    def validation_steps(self) -> dict[str, np.ndarray]:
        return self.table("validation_steps")

    @property
    def pipeline(self) -> dict[str, np.ndarray]:
        return self.table("pipeline")

    @property
    def traced_steps(self) -> dict[str, np.ndarray]:
        return self.table("traced_steps")

    @property
    def kernels(self) -> dict[str, np.ndarray]:
        return self.table("kernels")

    @property
    def clock(self) -> dict[str, np.ndarray]:
        return self.table("clock")

    def table(self, table: str) -> dict[str, np.ndarray]:
        """All rows of one of `schema.TABLES`; every column exists."""
        return self._cached(
            f"tables/{table}",
            lambda: (
                self._gather(
                    f"tables/{table}",
                    table,
                    lambda segment: segment.table(table) if segment.rows(table) else {},
                )
                or {name: empty_column(kind, 0) for name, kind in TABLES[table].items()}
            ),
        )

    @property
    def samples(self) -> dict[str, dict[str, np.ndarray]]:
        """All samples: group -> {"time_ns": int64[n], column: float64[n], …}."""
        return self._cached("samples", self._all_samples)

    def _all_samples(self) -> dict[str, dict[str, np.ndarray]]:
        groups: dict[str, list[dict[str, np.ndarray]]] = {}
        for info, segment in self.opened():
            for group in segment.groups:
                try:
                    groups.setdefault(group, []).append(segment.samples(group))
                except Damaged as error:
                    self._damaged(info.name, error)
        return {group: concatenate(None, parts) for group, parts in sorted(groups.items())}

    def _gather(self, key: str, table: str, read) -> dict[str, np.ndarray]:
        """Rows of all segments; those of sealed ones are kept for when the recording grows."""
        done, kept = self._whole.get(key, (-1, {}))
        parts, open_part = ([kept] if kept else []), {}
        for info, segment in self.opened(after=done):
            try:
                rows = read(segment)
            except Damaged as error:
                self._damaged(info.name, error)
                continue
            if info.sealed:
                done = max(done, info.last)
                if rows:
                    parts.append(rows)
            else:
                open_part = rows
        sealed = concatenate(table, parts) if parts else {}
        self._whole[key] = (done, sealed)
        if sealed and open_part:
            return concatenate(table, [sealed, open_part])
        return sealed or open_part

    # --- its files --------------------------------------------------------------------------------

    def _top(self) -> tuple[Overview, Summary]:
        """The stored overview and distributions, with the rows of newer segments added."""
        stored = self._stored_top()
        overview = summary = None
        covered = -1
        if stored is not None:
            try:
                overview, index = Overview.unpack(stored)
                summary = Summary.restore(index["summary"])
                covered = max((entry[1] for entry in index["segments"]), default=-1)
            except (Damaged, KeyError, TypeError, ValueError, IndexError) as error:
                self._overview_problem(error)
                overview, covered = None, -1
        if overview is None or summary is None:
            overview, summary = Overview(self.start_ns), Summary()
        for info, segment in self.opened(after=covered):
            try:
                tables = {"steps": segment.table("steps")} if segment.rows("steps") else {}
                samples = {group: segment.samples(group) for group in segment.groups}
            except Damaged as error:
                self._damaged(info.name, error)
                continue
            overview.add(tables, samples)
            summary.add(tables, samples)
        return overview, summary

    def _stored_top(self) -> bytes | None:
        """The bytes of `overview.npz`, kept until another segment is sealed."""
        if self._top_bytes is None and self.facts.get("sealed", 1):
            try:
                self._top_bytes = self._read("overview.npz")
            except OSError as error:
                if self.facts.get("sealed"):
                    self._overview_problem(error)
        return self._top_bytes

    def _segment_index(self) -> dict[tuple[int, int], list]:
        """The overview's list of sealed segments: (first, last) -> its entry."""
        stored = self._stored_top()
        if stored is None:
            return {}
        try:
            entries = Container(stored).index["segments"]
            return {
                (entry[0], entry[1]): entry
                for entry in entries
                if len(entry) == 8 and all(isinstance(number, int) for number in entry)
            }
        except (Damaged, KeyError, TypeError, IndexError) as error:
            self._overview_problem(error)
            return {}

    def _overview_problem(self, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and self._is_deleted():
            return
        path = self._storage.join(self.path, "overview.npz")
        self._problem(path, f"damaged: {_reason(error)}; reading all segments instead")

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments in order, without opening them; a missing one is a problem."""
        with self._lock:
            if self._infos is None:
                self._infos = self._list_segments()
            return self._infos

    def _list_segments(self) -> list[SegmentInfo]:
        if self._is_deleted():
            return []
        sealed = self.facts.get("sealed")
        infos, gaps = list_segments(
            self._storage.names(self.path),
            self._segment_index(),
            sealed=sealed if isinstance(sealed, int) else 0,
            closed=self.facts.get("status") != "live",
        )
        for gap in gaps:
            self._missing(gap)
        return infos

    def _missing(self, gap: SegmentInfo) -> None:
        what = "its rows are not shown"
        if gap.steps > 0:
            what = f"steps {gap.first_step} to {gap.last_step} are not shown"
        self._problem(self._storage.join(self.path, gap.name), f"missing; {what}")

    def opened(self, after: int = -1) -> Iterator[tuple[SegmentInfo, Segment]]:
        """Open the segments one after the other, those up to number `after` left out."""
        for info in self.segments:
            if info.last > after:
                segment = self.open_segment(info)
                if segment is not None:
                    yield info, segment

    def open_segment(self, info: SegmentInfo) -> Segment | None:
        """One segment, or None (and a problem) where it cannot be read."""
        try:
            return Segment(self._read(info.name))
        except FileNotFoundError:
            return self._vanished(info)
        except (OSError, Damaged) as error:
            self._damaged(info.name, error)
            return None

    def _vanished(self, info: SegmentInfo) -> Segment | None:
        """A file that was listed is gone: merged meanwhile, or the recording was deleted."""
        self._infos = None
        for other in self.segments:
            if other.first <= info.first and info.last <= other.last and other != info:
                if other.first == info.first:  # the first of the merged ones stands for all
                    return self.open_segment(other)
                return None
        if self.path not in self._problems:
            self._missing(info)
        return None

    def _read(self, name: str) -> bytes:
        return self._storage.read(self._storage.join(self.path, name), MAX_FILE_BYTES)

    def _is_deleted(self) -> bool:
        try:
            self._storage.names(self.path)
        except OSError:
            self._problem(self.path, "this recording was deleted while it was open")
            return True
        return False

    def _damaged(self, name: str, error: Exception) -> None:
        path = self._storage.join(self.path, name)
        self._problem(path, f"damaged: {_reason(error)}; its rows are not shown")

    def _problem(self, path: str, message: str) -> None:
        with self._lock:
            self._problems.setdefault(path, Problem(path, message))

    def _cached(self, key: str, make) -> Any:
        with self._lock:
            if key not in self._cache:
                self._cache[key] = make()
            return self._cache[key]

    def __repr__(self) -> str:
        return (
            f"<Recording {self.id}: {self.step_count} steps, "
            f"{(self.end_ns - self.start_ns) / 1e9:.1f} s, {self.status}>"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:300] or type(error).__name__
