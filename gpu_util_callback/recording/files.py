"""The files of one recording: listed, opened one by one, skipping what is damaged."""

# Paths may be URLs.
# ruff: noqa: PTH119

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpu_util_callback.recording.container import MAX_FILE_BYTES, Damaged
from gpu_util_callback.recording.facts import APART_NS, MOST_NS, Facts
from gpu_util_callback.recording.problems import Problem, reason, remedy, unreadable
from gpu_util_callback.recording.segment_list import SegmentInfo, list_segments
from gpu_util_callback.recording.segments import Extent, Segment
from gpu_util_callback.recording.storage import Storage
from gpu_util_callback.recording.top import StoredTop

__all__ = ["RecordingFiles"]

# An imported trace may hold much before its first step or after its last one; and rows of a live
# recording may be newer than its manifest.
FAR_APART_NS = 3600 * 10**9


class RecordingFiles:
    """Segments and `overview.npz` of a recording's folder; errors become problems."""

    def __init__(self, storage: Storage, path: str):
        self._storage = storage
        self.path = path
        self.folder = os.path.basename(path.rstrip("/"))
        self.facts: Facts = {}  # type: ignore[typeddict-item] # until it is read
        self._problems: dict[str, Problem] = {}
        self._lock = threading.RLock()  # held briefly, never while a file is read
        # Results computed from the files, until they change; and the computations under way.
        self._cache: dict[str, Any] = {}
        self._making: dict[str, threading.RLock] = {}
        # overview.npz, the number of sealed segments for which it was read, and its time stamp
        # where it turned out to be damaged.
        self._top_file: tuple[Any, StoredTop] | None = None
        self._bad_top: tuple | None = None
        self.unanswered = False

    @property
    def remote(self) -> bool:
        """True if reading may be slow, or never end."""
        return self._storage.remote

    def _stored_top(self) -> StoredTop | None:
        """Return `overview.npz`, kept until another segment is sealed; None where there is none."""
        sealed = self.facts.get("sealed", 1)
        known = self._top_file
        if known is None or known[0] != sealed:
            # Once for all readers until the manifest changes, also where it is damaged.
            found = self._cached("overview.npz", self._read_top) if sealed else None
            known = self._top_file = (sealed, found) if found is not None else None
        return known[1] if known is not None else None

    def _read_top(self) -> StoredTop | None:
        stamp = None
        try:
            stamp = self._storage.stamp(self._storage.join(self.path, "overview.npz"))
            if not stamp or stamp != self._bad_top:
                return StoredTop.opened(self._read("overview.npz"))
        except Damaged as error:
            self._bad_top = stamp
            self._overview_problem(error)
        except OSError as error:
            if self.facts.get("sealed"):
                self._overview_problem(error)
        return None

    @property
    def level_files(self) -> list[tuple[int, int]]:
        """(first, last) segment of each levels file, in order; none for a short run."""
        stored = self._stored_top()
        return [] if stored is None else stored.index.levels

    def _holding(self, table: str) -> dict[tuple[int, int], bool]:
        """Return (first, last) of the sealed segments -> True if they have rows of a table."""
        stored = self._stored_top()
        holds = {} if stored is None else stored.index.tables
        return {segment: table in tables for segment, tables in holds.items()}

    def having(self, table: str) -> list[SegmentInfo]:
        """Return the segments that have, or may have, rows of a table."""
        holding = self._holding(table)
        return [one for one in self.segments if holding.get((one.first, one.last), True)]

    def _group_problem(self, error: Damaged) -> None:
        path = self._storage.join(self.path, "overview.npz")
        self._problem(path, f"damaged: {reason(error)}; the first view lacks it")

    def _overview_problem(self, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and self._is_gone():
            return
        path = self._storage.join(self.path, "overview.npz")
        self._problem(path, f"damaged: {reason(error)}; reading all segments instead")

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments in order, without opening them; a missing one is a problem."""
        return self._cached("segments", self._list_segments)

    def _list_segments(self) -> list[SegmentInfo]:
        if self._is_gone():
            return []
        stored = self._stored_top()
        infos, gaps = list_segments(
            self._storage.names(self.path),
            {} if stored is None else stored.index.entries,
            sealed=self.facts.get("sealed") or 0,
            closed=self.facts.get("status") != "live",
        )
        for gap in gaps:
            self._missing(gap)
        return infos

    def _missing(self, gap: SegmentInfo) -> None:
        what = "its rows are not shown"
        if gap.steps > 0:
            what = f"steps {gap.first_step} to {gap.last_step} are not shown"
        message = f"missing; {what}: {remedy(FileNotFoundError())}"
        self._problem(self._storage.join(self.path, gap.name), message)

    def opened(
        self, after: int = -1, table: str | None = None, last: int | None = None
    ) -> Iterator[tuple[SegmentInfo, Segment]]:
        """Open the segments one after the other.

        Args:
            after: skip the segments up to this number.
            table: skip the segments known to hold no rows of it.
            last: skip the segments after this number.
        """
        for info in self.segments if table is None else self.having(table):
            if last is not None and info.last > last:
                break
            if info.last > after:
                segment = self.open_segment(info)
                if segment is not None:
                    yield info, segment

    def open_segment(self, info: SegmentInfo) -> Segment | None:
        """Return one segment, or None (and a problem) where it cannot be read."""
        if info.sealed:
            return self._open(info)
        # The open one is read table by table after each flush: decode all of it at once.
        return self._cached(f"open {info.name}", lambda: self._open(info))

    def _open(self, info: SegmentInfo) -> Segment | None:
        try:
            data = self._read(info.name)
            return Segment(data, self._extent(), lambda line: self._odd(info.name, line))
        except FileNotFoundError:
            return self._vanished(info)
        except (OSError, Damaged) as error:
            self.damaged(info.name, error)
            return None

    def _vanished(self, info: SegmentInfo) -> Segment | None:
        """Handle a listed file that is gone: merged meanwhile, or the recording was deleted."""
        self._cache.pop("segments", None)
        for other in self.segments:
            if other.first <= info.first and info.last <= other.last and other != info:
                if other.first == info.first:  # the first of the merged ones represents all
                    return self.open_segment(other)
                return None
        if self.path not in self._problems:
            self._missing(info)
        return None

    def _read(self, name: str) -> bytes:
        return self._storage.read(self._storage.join(self.path, name), MAX_FILE_BYTES)

    def _is_gone(self) -> bool:
        """Return whether its folder is deleted or unreadable, which becomes a problem."""
        try:
            self._storage.names(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._problem(self.path, "this recording was deleted while it was open")
        except OSError as error:
            self._problem(self.path, unreadable(error))
        else:
            return False
        return True

    def damaged(self, name: str, error: Exception) -> None:
        """Record a damaged file as a problem; its content is left out."""
        path = self._storage.join(self.path, name)
        what = "damaged"
        if not isinstance(error, Damaged):
            what, self.unanswered = "cannot be read", True
        self._problem(path, f"{what}: {reason(error)}; its rows are not shown: {remedy(error)}")

    def _odd(self, name: str, line: str) -> None:
        self._problem(self._storage.join(self.path, name), f"{line}; left out")

    def _extent(self) -> Extent:
        """Return the times that rows may have, according to the manifest."""
        facts = self.facts
        start = facts.get("started_ns")
        if start is None:
            return Extent()
        ends = [end for end in (facts.get("ended_ns"), facts.get("heartbeat_ns")) if end]
        exact = facts.get("status") in ("ended", "interrupted") and not facts.get("source")
        apart = APART_NS if exact else FAR_APART_NS
        end = max(ends, default=MOST_NS - apart) + apart
        return Extent(max(0, start - apart), max(start, end))

    def _problem(self, path: str, message: str) -> None:
        with self._lock:
            self._problems.setdefault(path, Problem(path, message))

    def _cached(self, key: str, make: Callable[[], Any]) -> Any:
        """Return `make`'s result, cached until the files change; other keys do not wait for it."""
        with self._lock:
            cache = self._cache
            if key in cache:
                return cache[key]
            making = self._making.setdefault(key, threading.RLock())
        with making:
            if key not in cache:
                cache[key] = make()
            return cache[key]

    def _forget(self) -> None:
        """Drop the cache after a change; a computation under way serves only earlier callers."""
        with self._lock:
            self._cache = {}
