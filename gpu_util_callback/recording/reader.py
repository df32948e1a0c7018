"""The reader of one recording: its files and tables, lazily; damaged parts are skipped."""

# Paths may be URLs.
# ruff: noqa: PTH119

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import numpy as np

from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.container import MAX_FILE_BYTES, Container, Damaged
from gpu_util_callback.recording.manifest import ManifestError, UnknownFormat
from gpu_util_callback.recording.manifest_facts import AccountFacts, DiagnosisFacts, Facts, Status, with_known_parts
from gpu_util_callback.recording.problems import Problem, reason, remedy, unreadable
from gpu_util_callback.recording.segments import (
    Part,
    Segment,
    SegmentInfo,
    complete,
    concatenate,
    joined,
    list_segments,
)
from gpu_util_callback.recording.storage import LeadsOutside, Storage
from gpu_util_callback.recording.summary import account
from gpu_util_callback.recording.top import PIPELINE, Top, longest, stretch_name
from gpu_util_callback.words import steps

_Sums = TypeVar("_Sums", bound=Top)


def recording_id(run: str, folder: str) -> str:
    """Return an id for URLs: run and folder, all but the plainest characters written as ~hex."""
    # File names need not be text.
    parts = (quote(part, safe="/", errors="surrogateescape") for part in (run, folder))
    return "/".join(part.replace("~", "~7E").replace("%", "~") for part in parts)


class RecordingFiles:
    """Segments and `top.npz` of a recording's folder; errors become problems."""

    def __init__(self, storage: Storage, path: str):
        self._storage = storage
        self.path = path
        self.folder = os.path.basename(path.rstrip("/"))
        self.facts: Facts = {}  # type: ignore[typeddict-item] # until it is read
        self._problems: dict[str, Problem] = {}
        self._lock = threading.RLock()  # held briefly, never while a file is read
        # Results computed from the files, until they change; and the computations under way.
        self._cache: dict[str, Any] = {}
        self._locks_of_results: dict[str, threading.RLock] = {}  # held while a result is computed
        self._top_file: tuple[Any, Top] | None = None  # number of segments that it covers, and the stored top
        self.unanswered = False  # opening the recording again may make more of it readable

    @property
    def remote(self) -> bool:
        """True if reading may be slow, or never end."""
        return self._storage.remote

    def _stored_top(self) -> Top | None:
        """Return `top.npz`, read again only when the manifest says that it was written again.

        None if missing or damaged.
        """
        covered = self._covered
        current = self._top_file
        if current is None or current[0] != covered:
            # Once for all readers until the manifest changes, also where it is damaged.
            top = self.cached("top.npz", self._read_top) if covered != 0 else None
            current = self._top_file = (covered, top) if top is not None else None
        return current[1] if current is not None else None

    @property
    def _covered(self) -> int | None:
        """The number of segments that `top.npz` covers; None without a manifest."""
        return self.facts.get("covered")

    def _read_top(self) -> Top | None:
        """Return the stored sums; None where they are missing, damaged (a problem) or of another version."""
        try:
            return Top.unpack(
                Container(self._read("top.npz")), partial(self._damaged, "top.npz", "the first view lacks it")
            )
        except Damaged as error:
            self._top_problem(error)
        except OSError as error:
            if self._covered:
                self._top_problem(error)
        return None

    def stretch_of(self, info: SegmentInfo) -> tuple[int, int] | None:
        """Return (first, last) of the segments that share a top with this one, if it has one."""
        stored = self._stored_top()
        stretches = [] if stored is None else stored.stretches
        return next((stretch for stretch in stretches if stretch[0] <= info.first <= stretch[1]), None)

    def open_stretch(self, stretch: tuple[int, int]) -> Top | None:
        """Return the top of a stretch of segments (first, last), or None (and a problem) where it is damaged."""
        name = stretch_name(*stretch)
        damaged = partial(self._damaged, name, "reading the segments instead")
        try:
            return Top.unpack(Container(self._read(name)), damaged)
        except (OSError, Damaged) as error:
            damaged(error)
            return None

    def _damaged(self, name: str, consequence: str, error: Exception) -> None:
        """Record a damaged file that can be done without as a problem."""
        self._problem(self._storage.join(self.path, name), f"damaged: {reason(error)}; {consequence}")

    def _top_problem(self, error: Exception) -> None:
        if not (isinstance(error, FileNotFoundError) and self._names() is None):
            self._damaged("top.npz", "reading all segments instead", error)

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments in order, without opening them; a missing one is a problem."""
        return self.cached("segments", self._list_segments)

    def _list_segments(self) -> list[SegmentInfo]:
        """Return the sealed segments in order, by the top's list and the folder's names; a missing one is a problem."""
        stored = self._stored_top()
        for _ in range(2):  # a list made while files are sealed may have neither
            names = self._names()
            if names is None:
                return []
            infos, gaps = list_segments(
                names, () if stored is None else stored.segments, written=self.facts.get("sealed") or 0
            )
            if not gaps:
                break
        for gap in gaps:
            self._missing(gap)
        return infos

    def _missing(self, gap: SegmentInfo) -> None:
        lost = f"{steps(gap.first_step, gap.last_step + 1)} not shown" if gap.steps > 0 else "its rows are not shown"
        message = f"missing; {lost}: {remedy(FileNotFoundError())}"
        self._problem(self._storage.join(self.path, gap.name), message)

    def opened(self, last: int | None = None) -> Iterator[tuple[SegmentInfo, Segment]]:
        """Open the segments one after the other; those that cannot be read are left out.

        Args:
            last: skip the segments after this flush, counted from 0.
        """
        for info in self.segments:
            if last is not None and info.last > last:
                break
            segment = self.open_segment(info)
            if segment is not None:
                yield info, segment

    def open_segment(self, info: SegmentInfo) -> Segment | None:
        """Return one segment, or None (and a problem) where it cannot be read."""
        try:
            return Segment(self._read(info.name))
        except FileNotFoundError:
            return self._vanished(info)
        except (OSError, Damaged) as error:
            self.damaged(info.name, error)
            return None

    def _vanished(self, info: SegmentInfo) -> Segment | None:
        """Return the segment for a listed file that is gone: that in which it was sealed, or None.

        Where several were sealed into one, only the first stands for it. None with a problem: the rows are lost, or the
        recording was deleted.
        """
        self._cache.pop("segments", None)
        for other in self.segments:
            if other.first <= info.first and info.last <= other.last and other != info:
                # Of those that were sealed it is the first.
                return self.open_segment(other) if other.first == info.first else None
        if self.path not in self._problems:
            self._missing(info)
        return None

    def _read(self, name: str) -> bytes:
        return self._storage.read(self._storage.join(self.path, name), MAX_FILE_BYTES)

    def _names(self) -> list[str] | None:
        """Return the names of its files; None, and a problem, where its folder is deleted or unreadable."""
        try:
            return self._storage.names(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._problem(self.path, "this recording was deleted while it was open")
        except OSError as error:
            self._problem(self.path, unreadable(error))
        return None

    def damaged(self, name: str, error: Exception) -> None:
        """Record a damaged or unreadable file as a problem; its content is left out."""
        known = (f"{info.steps:,} steps not readable" for info in self.segments if info.name == name and info.steps > 0)
        trouble, lost = "damaged", next(known, "its rows are not shown")
        if not isinstance(error, Damaged):
            trouble, self.unanswered = "cannot be read", True
        self._problem(self._storage.join(self.path, name), f"{trouble}: {reason(error)}; {lost}: {remedy(error)}")

    def _problem(self, path: str, message: str) -> None:
        with self._lock:
            self._problems.setdefault(path, Problem(path, message))

    def cached(self, key: str, make: Callable[[], Any]) -> Any:
        """Return `make`'s result, computed once until the files change.

        Several threads that ask for one key wait for one computation; other keys do not wait for it.
        """
        with self._lock:
            cache = self._cache
            if key in cache:
                return cache[key]
            making = self._locks_of_results.setdefault(key, threading.RLock())
        with making:
            if key not in cache:
                cache[key] = make()
            return cache[key]

    def _forget(self) -> None:
        """Drop the cache after a change; a computation under way serves only earlier callers."""
        with self._lock:
            self._cache = {}


class Recording(RecordingFiles):
    """One recording: what one process recorded during one fit.

    Tables are dictionaries of numpy arrays, read on first use: `recording.steps["duration_ns"]`.
    An integer that is absent is -1 (`schema.ABSENT_INT`), a float NaN, a text "". Damaged parts
    are left out and listed in `problems`.

    Attributes:
        run: name of the TensorBoard run it belongs to, "." for the log directory itself.
        id: unique within the log directory, and safe in URLs.
        path, folder: its location, and the last part of that.
        session: recordings with the same value were made together (ranks of one job).
        facts: those of the manifest.
        problems: the parts that could not be read, so far.
        unanswered: True if opening the recording again may make more of it readable.
        show: the timeline as a frame for a notebook's cell; `report.notebook`, which stands above
            this floor, sets it.
    """

    show: ClassVar[Callable[..., Any]]

    def __init__(self, storage: Storage, path: str, run: str = ".", id: str | None = None):
        super().__init__(storage, path)
        self.run = run
        self.id = id or recording_id(run, self.folder)
        self.session = self.folder
        self._stamp: tuple | None = None  # of the manifest's file when it was last read
        self._changed_at: float | None = None  # when the manifest was last seen to change
        self._refreshing = threading.Lock()
        self._folded_top: tuple[Any, Top] | None = None  # number of segments, and their top, where none is stored
        self._newer_rows: dict[str, Part] = {}  # rows of the segments after those, by the file's name
        self.refresh()

    def release(self) -> None:
        """Free what was read of the rows; it is read again when it is asked for."""
        with self._lock:
            self._forget()
            self._top_file = self._folded_top = None
            self._newer_rows = {}

    # --- identity ---------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Reload the manifest; return True if the recording changed since (cheap when not).

        Raises: UnknownFormat where another version wrote it; LeadsOutside.
        """
        path = self._storage.join(self.path, "manifest.json")
        with self._refreshing:
            try:
                stamp = self._storage.stamp(path)
                if stamp == self._stamp and stamp:
                    return False
                data = self._storage.read(path, manifests.MAX_BYTES)
                facts, left_out = manifests.parse(data)
            except (UnknownFormat, LeadsOutside):
                raise
            except (OSError, ManifestError) as error:
                return self._without_manifest(error)
            with self._lock:
                # problems that are over, as the manifest is readable
                solved = [self._problems.pop(place, None) for place in (self.path, path)]
                changed = facts != self.facts
                self._stamp = stamp
                if changed:
                    if self.facts:
                        self._changed_at = time.monotonic()
                    self.facts = facts
                if changed or any(solved):
                    self._forget()
                if left_out:
                    self._problem(path, _left_out(left_out))
                return changed or any(solved)

    def _without_manifest(self, error: Exception) -> bool:
        """Note as a problem that the manifest cannot be read; return whether what is shown changed by that."""
        path = self._storage.join(self.path, "manifest.json")
        is_reported = self.path in self._problems
        self._stamp = None  # it may come back unchanged
        self._forget()
        if self._names() is None:  # deleted, which is a problem of its own
            return not is_reported
        if self._is_starting():  # it is still to be written
            return False
        message = str(error) if isinstance(error, ManifestError) else reason(error)
        if isinstance(error, FileNotFoundError):
            message = "manifest.json is missing"
        elif isinstance(error, OSError):
            self.unanswered = True
        before = self._problems.get(path)
        self._problem(path, f"{message}; showing what the segments hold: {remedy(error)}")
        return before != self._problems[path]

    def _is_starting(self) -> bool:
        """Return True if its folder was made just now, and nothing has been written into it yet."""
        if self.facts:
            return False
        try:
            names = self._storage.names(self.path)
            age = self._storage.age_s(self.path, time.time())
        except OSError:
            return False
        # A clock ahead of ours by more than the patience gives no information.
        young = age is not None and abs(age) < manifests.PATIENCE_S
        return young and all(name.startswith(".") for name in names)

    @property
    def status(self) -> Status:
        """One of "live", "ended", "interrupted", "lost" (no heartbeat, or the process is gone)."""
        status = self.facts.get("status")
        if status == "ended" or status == "interrupted":
            return status
        if status != "live":  # no readable manifest
            return "live" if self._is_starting() else "lost"
        try:
            age = self._storage.age_s(self._storage.join(self.path, "manifest.json"), time.time())
        except OSError:
            return "lost"
        if age is None and self._changed_at is not None:  # a remote store: our own observation
            age = time.monotonic() - self._changed_at
        return "lost" if manifests.lost(self.facts, age) else "live"

    @property
    def revision(self) -> str:
        """A value that changes whenever something that is shown may have changed."""
        return self.revision_as(self.status)

    def revision_as(self, status: str) -> str:
        """Return the revision with a status that is known: that of a live run is in no file."""
        damage = f".{len(self._problems)}" if self._problems else ""
        return f"{self.facts.get('flushes', 0)}{status[:2]}{damage}"

    @property
    def problems(self) -> list[Problem]:
        """Parts that could not be read so far, and rows that the recorder had to drop."""
        with self._lock:
            problems = list(self._problems.values())
        dropped = self.facts.get("dropped_rows")
        if dropped:
            message = f"{dropped} rows were not kept: they came faster than they could be written"
            problems.append(Problem(self.path, message))
        return problems

    @property
    def stored(self) -> DiagnosisFacts | None:
        """The recorder's own diagnosis; None where there is no readable one."""
        return self.facts.get("diagnosis")

    @property
    def account(self) -> AccountFacts:
        """The host account (see `summary.Account`); from damaged rows, without its parts."""
        stored = self.facts.get("account")
        return stored if stored is not None else self.cached("account", self._account_of_rows)

    def _account_of_rows(self) -> AccountFacts:
        """Return the account of all rows; with its wall time alone, and a problem, where parts exceed the recording."""
        from_rows = account(self.steps, self.phases, self.start_ns, self.end_ns)
        plausible = with_known_parts(from_rows)
        if plausible is not from_rows:
            self._problem(
                self.path, "its steps and phases take longer than the recording; where its time went is not shown"
            )
        return plausible

    @property
    def top(self) -> Top:
        """The whole recording in a few thousand cells; treat it as read-only.

        Reads `top.npz` and any newer segments: usually the open one.
        """
        return self.cached("top", self._top)

    @property
    def summary(self) -> dict[str, Any]:
        """Distributions of every flushed row: {"steps" or group: {column: {"mean", "p50", …}}}.

        Quantiles are within 1 %. Like `top`, it reads no more than the newest segment.
        """
        return self.cached("summary", lambda: self.cached("distributions", lambda: self.top.summary).result())

    @property
    def start_ns(self) -> int:
        start = self.facts.get("started_ns")
        if start is not None:
            return start
        return self.cached("start", lambda: self._origin() or self._time_range()[0])

    @property
    def end_ns(self) -> int:
        """The end, or the last heartbeat."""
        for end in (self.facts.get("ended_ns"), self.facts.get("heartbeat_ns")):
            if end is not None:
                return max(self.start_ns, end)
        return self.cached("end", lambda: max(self.start_ns, self._time_range()[1]))

    @property
    def rank(self) -> int | None:
        """The rank of the worker that recorded it."""
        return self.facts.get("rank")

    @property
    def step_count(self) -> int:
        """Rows of the steps table, without reading it."""
        rows = self.facts.get("rows")
        return len(self.steps["step"]) if rows is None else rows.get("steps", 0)

    def _origin(self) -> int:
        """Return the start in the top, 0 without one."""
        stored = self._stored_top()
        return 0 if stored is None else stored.origin_ns

    def _time_range(self) -> tuple[int, int]:
        """Return the first and the last time in its rows, ns; without rows, twice the start in the folder's name."""
        steps = self.steps
        times = [group["time_ns"] for group in self.samples.values()]
        if not times and not len(steps["step"]):
            start_in_name = manifests.named_start(self.folder)
            return start_in_name, start_in_name
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

    def longest_phases(self, count: int) -> dict[str, np.ndarray]:
        """Return the `count` longest phases (at most `top.LONGEST`), in chronological order.

        Reads no more than `top` does.
        """
        return longest(self.top.longest, count)

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

    def table(self, table: str) -> dict[str, np.ndarray]:
        """Return all rows of one of `schema.TABLES`; every column exists."""
        none = complete(table, {})
        return self.cached(f"tables/{table}", lambda: concatenate(table, [none, *self.rows_of(table)]))

    @property
    def samples(self) -> dict[str, dict[str, np.ndarray]]:
        """All samples: group -> {"time_ns": int64[n], column: float64[n], …}."""
        return self.cached("samples", self._all_samples)

    def _all_samples(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the samples of all segments: group -> column -> values[n]."""
        groups: dict[str, list[dict[str, np.ndarray]]] = {}
        for info, segment in self.opened():
            _, samples = segment.readable((), partial(self.damaged, info.name))
            for group, rows in samples.items():
                groups.setdefault(group, []).append(rows)
        return {group: concatenate(None, parts) for group, parts in sorted(groups.items())}

    def parts(self, after: int = -1) -> Iterator[Part]:
        """Yield (tables, samples) of each segment in order, without all rows in memory.

        Args:
            after: skip the segments up to this flush, counted from 0.
        """
        is_over = self.facts.get("status") in ("ended", "interrupted")
        # of an ended recording nothing newer can come: list no files
        for info in () if is_over and self.facts.get("sealed") == after + 1 else self.segments:
            segment = self.open_segment(info) if info.last > after else None
            if segment is not None:
                yield segment.readable(None, partial(self.damaged, info.name))

    def stored_sums(self, kind: type[_Sums]) -> _Sums | None:
        """Return the sums of a class that its recorder stored, with all groups of samples in memory.

        None where there are none, or those of another version, or damaged ones (a problem).

        Args:
            kind: `Top` or a class derived from it.
        """
        if self._covered == 0:
            return None
        damaged: list[Damaged] = []
        try:
            sums = kind.unpack(Container(self._read("top.npz")), damaged.append)
            if sums is not None:
                for group in sums.groups:
                    if group != PIPELINE:  # which is drawn alone
                        sums.group(group)
        except (OSError, Damaged) as error:
            if not isinstance(error, OSError) or self._covered:
                self.distrust_sums(error)
            return None
        if damaged:
            self.distrust_sums(damaged[0])
        return None if damaged else sums

    def distrust_sums(self, error: Exception) -> None:
        """Record sums that cannot be used as a problem."""
        self._damaged("top.npz", "judging the rows of all segments instead", error)

    def rows_of(self, table: str, first: int | None = None, last: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows of a table, segment by segment: those read are not kept in memory.

        Args:
            table: one of `schema.TABLES`.
            first: the first step whose rows are wanted; None = from the start.
            last: the last one, included; None = to the end.
        """
        low, high = -math.inf if first is None else first, math.inf if last is None else last
        for info in self.segments:
            if not info.may_hold(table):
                continue
            # no step of it is wanted: it is not opened
            if table == "steps" and info.steps > 0 and not (low <= info.last_step and info.first_step <= high):
                continue
            segment = self.open_segment(info)
            if segment is None:
                continue
            tables, _ = segment.readable((table,), partial(self.damaged, info.name))
            for rows in tables.values():
                step = rows.get("step")
                wanted: slice | np.ndarray = slice(None) if step is None else (step >= low) & (step <= high)
                yield {name: values[wanted] for name, values in rows.items()}

    # --- derived files ----------------------------------------------------------------------------

    def _top(self) -> Top:
        """Return the stored top with the rows of newer segments added; without a stored one, that of all rows."""
        top = self._stored_top()
        if top is None:
            if self._folded_top is None or self._folded_top[0] != self._covered or self._covered is None:
                self._folded_top = self._covered, self._folded()
            top = self._folded_top[1]
        # A live run writes a small segment at each flush.
        parts, newest = [], {}
        for info in self.segments:
            if info.last > top.covered:
                # each newer segment is read once
                rows = self._newer_rows.get(info.name) or self._rows_of(self.open_segment(info), info)
                parts.append(rows)
                newest[info.name] = rows
        self._newer_rows = newest
        return top.with_rows(*joined(parts)) if parts else top

    def _folded(self) -> Top:
        """Return a top of the rows of all segments that a stored one would cover (all, if that is not known)."""
        top = Top(self.start_ns)
        covered = self._covered
        last = max((i.last for i in self.segments), default=-1) if covered is None else covered - 1
        for info, segment in self.opened(last=last):
            top.add(*self._rows_of(segment, info))
        top.covered = last
        return top

    def _rows_of(self, segment: Segment | None, info: SegmentInfo) -> Part:
        """Return what the top has of a segment's rows."""
        if segment is None:
            return {}, {}
        return segment.readable(("steps", "phases", "pipeline"), partial(self.damaged, info.name))

    def __repr__(self) -> str:
        return (
            f"<Recording {self.id}: {self.step_count} steps, "
            f"{(self.end_ns - self.start_ns) / 1e9:.1f} s, {self.status}>"
        )


def _left_out(fields: list[str]) -> str:
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    return f"{fields[0]}{more}; left out: please report it, with this file"
