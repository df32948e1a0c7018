"""The writer of one recording: appends rows and flushes them so that a kill loses little."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_util_callback._version import __version__
from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import AccountFacts
from gpu_util_callback.recording.schema import FORMAT_MAJOR, FORMAT_MINOR, PLUGIN_NAME, SUMMARY_FILE, TABLES
from gpu_util_callback.recording.segments import (
    MAX_ROWS,
    Part,
    SegmentInfo,
    complete,
    concatenate,
    encode_segment,
    joined,
    segment_name,
)
from gpu_util_callback.recording.storage import Storage, is_remote, storage_for
from gpu_util_callback.recording.summary import Account
from gpu_util_callback.recording.top import Top, packed, stretch_name
from gpu_util_callback.redaction import Redactor, hashed_host, without_secrets

# Rows are sealed after a minute, or at this size in memory: packed, it is a tenth of that.
SEAL_NS = 60 * 10**9
SEAL_BYTES = 3 << 20
# Of so many values, a stretch of a long run gets a top of its own: any zoom then reads little.
STRETCH_VALUES = 1 << 22
# Rows kept in memory while nothing can be written; the oldest go first.
MAX_WAITING_ROWS = 4 * MAX_ROWS
MAX_WAITING_PARTS = 64  # arrays of them, before they become one
# Rows and flushes that the sums may lack: added together they cost less.
MOST_UNSUMMED, MOST_UNSUMMED_PARTS = 1 << 16, 8

# What a flush writes is packed where that costs less than the way to the store.
LOCAL_LEVEL, REMOTE_LEVEL, SEALED_LEVEL = 0, 1, 6

# ("tables" or "samples", name) -> rows, in the pieces in which they came.
NewRows = dict[tuple[str, str], list[dict[str, np.ndarray]]]

LOOK_FILE = "look.json"
MAX_REQUEST_BYTES = 1000


class RecordingWriter:
    """Writes one recording: one process, one fit.

    Rows are appended from any thread and reach the disk at `flush`, which the caller runs every
    `flush_s` seconds. A flush writes the new rows as a segment of their own, and the manifest with
    its heartbeat. After 60 s, or some 300 kB, these small segments are sealed: written again as
    one, well packed; the top is rewritten then, and they are removed.

    Args:
        log_dir: the TensorBoard run's directory, or any fsspec URL.
        facts: known facts about the run; become part of the manifest. `host`, `pid` and `rank`
            name the folder and are filled in when missing; `started_ns` is the start of the account
            (now, when missing).
        clock: the clock of all times.
        redact: keep the names of host, user and folders, pids and other users' processes out of
            every file and name.
        flush_s: seconds between flushes, by which readers judge the heartbeat.
        later: touch no storage yet: `open`, or the first flush, makes the folder.

    Attributes:
        path: the recording's folder; "" until it is made.
        answered: `time.monotonic` when storage had last written a file; 0 = never.
        files: content of other tools' files by name, to be written into it.
        sums: what is drawn, or also judged; set before rows are appended, and None where adding rows has failed.
        removals: how often the folder was removed, and made anew, while it was written.

    Raises: OSError where the folder cannot be made.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        facts: Mapping[str, Any],
        *,
        clock: Clock,
        redact: bool = False,
        flush_s: float = 2.0,
        later: bool = False,
    ):
        self._log_dir = log_dir
        self._storage: Storage
        self._clock = clock
        self.flush_s = flush_s
        self.facts: dict[str, Any] = {**manifests.process_facts(), "rank": 0, **facts}
        self.facts.setdefault("started_ns", clock.now())
        self.sums: Top | None = Top(self.facts["started_ns"])
        host = str(self.facts.get("host") or "unknown")
        self._redact = Redactor({host, manifests.process_facts()["host"]}) if redact else None
        self.name = self.path = ""
        self.removals = 0
        self.files: dict[str, bytes] = {}

        # The new rows, the facts, and sums over all rows; held briefly.
        self._lock = threading.Lock()
        self._io_lock = threading.Lock()  # everything below; held while writing
        self._new: NewRows = {}  # appended since the last flush
        self._new_count: Counter[tuple[str, str]] = Counter()
        self._summing = threading.Lock()  # around the sums, never while storage is waited for; taken before `_lock`
        self._unsummed: NewRows = {}  # rows that the sums lack
        self._sums_error: Exception | None = None  # why there are no sums
        self._saved_sums: dict[str, np.ndarray] | None = None  # the sums of all rows up to this flush
        self._level = REMOTE_LEVEL if is_remote(log_dir) else LOCAL_LEVEL
        self._waiting: Part = {}, {}  # rows that are in no file yet
        self._small_parts: list[Part] = []  # rows of each small segment that is not sealed, in order
        self._small_rows: Counter[tuple[str, str]] = Counter()
        self._small_bytes = 0
        self._unsealed_since_ns: int | None = None  # when the first row came that is not sealed; None = all are
        self._next_segment = 0  # of the next segment
        self._superfluous: list[str] = []  # files to remove once the top is written
        self._covered = 0  # number of the first segment that the written top lacks
        self._segments: list[SegmentInfo] = []  # the sealed ones
        self._stretches: list[tuple[int, int]] = []  # the first and last segment of each
        self._stretch = Top(self.facts["started_ns"])  # of the sealed segments after the last stretch
        self._top_is_due = False
        self._account = Account()
        self._total_rows = dict.fromkeys(TABLES, 0)
        self._dropped_rows = 0
        self._flushes = 0
        self._status = "live"
        self._ended_ns: int | None = None
        self._failed_writes = False  # the last write failed
        self._is_summarized = False
        self.answered = 0.0
        if not later:
            self.open()

    def open(self) -> None:
        """Make the folder, with a first manifest. Raises: OSError; it may be tried again."""
        with self._io_lock:
            self._open_folder()
            self._write_manifest()

    def _open_folder(self) -> None:
        """Make the recording's folder, once."""
        if self.path:
            return
        self._storage, root = storage_for(self._log_dir)
        self.name, self.path = self._make_folder(root, str(self.facts.get("host") or "unknown"))

    # --- appending --------------------------------------------------------------------------------

    def update(self, **facts: Any) -> None:
        """Merge facts into the manifest; they are written at the next flush."""
        with self._lock:
            self.facts.update(facts)

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows to one of `schema.TABLES`; missing columns are absent.

        Raises: ValueError for an unknown table or column, or different lengths.
        """
        rows = complete(table, columns)
        if not _length(rows):
            return
        clean = without_secrets if self._redact is None else self._redact.text
        for name, kind in TABLES[table].items():
            if kind == "text":
                rows[name][:] = [clean(text) for text in rows[name]]
        self._keep_rows(("tables", table), rows)

    def append_samples(self, group: str, columns: Sequence[str], time_ns: np.ndarray, values: np.ndarray) -> None:
        """Append samples to a group.

        Args:
            group: "gpu0", "gpu0/utilization", "host", …
            columns: names of the m columns; they may vary from call to call.
            time_ns: int64[n] on the recording's clock.
            values: float64[n, m]; NaN = absent.

        Raises: ValueError where the shapes do not fit.
        """
        times = np.array(time_ns, np.int64)
        table = np.array(values, np.float64)
        if times.ndim != 1 or table.shape != (len(times), len(columns)):
            raise ValueError(f"{group}: {table.shape} values for {len(times)} times and {len(columns)} columns")
        if not len(times):
            return
        rows: dict[str, np.ndarray] = {"time_ns": times}
        rows.update((str(name), table[:, at].copy()) for at, name in enumerate(columns))
        self._keep_rows(("samples", str(group)), rows)

    def count_dropped(self, table: str, rows: int) -> None:
        """Count dropped rows of a table; the numbers of later rows continue after them."""
        with self._lock:
            self._total_rows[table] += rows
            self._dropped_rows += rows

    def _keep_rows(self, key: tuple[str, str], rows: dict[str, np.ndarray]) -> None:
        """Keep new rows for the next flush, and for the sums: enough of them are summed up at once.

        Args:
            key: ("tables" or "samples", name).
        """
        self._keep_for_flush(key, rows)
        unsummed = self._unsummed.get(key, ())
        if len(unsummed) >= MOST_UNSUMMED_PARTS or sum(map(_length, unsummed)) >= MOST_UNSUMMED:
            with self._summing:
                self._sum_up(self._take_unsummed())

    def _keep_for_flush(self, key: tuple[str, str], rows: dict[str, np.ndarray]) -> None:
        """Keep new rows for the next flush; where none comes, the oldest are counted and dropped.

        Many parts are merged into one. Of too many rows three quarters remain, so that dropping is rare.

        Args:
            key: ("tables" or "samples", name).
        """
        with self._lock:
            if self.sums is not None:
                self._unsummed.setdefault(key, []).append(rows)
            parts = self._new.setdefault(key, [])
            parts.append(rows)
            row_count = self._new_count[key] = self._new_count[key] + _length(rows)
            if len(parts) < MAX_WAITING_PARTS and row_count <= MAX_WAITING_ROWS:
                return
            try:
                merged = concatenate(key[1] if key[0] == "tables" else None, parts)
            except MemoryError:  # they are kept as they are
                return
            if row_count > MAX_WAITING_ROWS:
                surplus = row_count - MAX_WAITING_ROWS * 3 // 4
                self._add_to_totals(key, {name: column[:surplus] for name, column in merged.items()})
                merged = {name: column[surplus:] for name, column in merged.items()}
                self._dropped_rows += surplus
                self._new_count[key] -= surplus
            self._new[key] = [merged]

    def _add_to_totals(self, key: tuple[str, str], rows: dict[str, np.ndarray]) -> None:
        """Add rows to the number of rows of their table, and to the host account; once each."""
        kind, name = key
        if kind == "tables":
            self._total_rows[name] += _length(rows)
            if name == "steps":
                self._account.add_steps(rows)
            elif name == "phases":
                self._account.add_phases(rows)

    def account(self, now_ns: int | None = None) -> AccountFacts:
        """Return the host account so far (see `Account.result`), of all flushed rows."""
        with self._lock:
            return self._account.result(self.facts["started_ns"], self._clock.now() if now_ns is None else now_ns)

    @contextlib.contextmanager
    def summed(self) -> Iterator[Top | None]:
        """Hold `sums` of all rows appended so far; nobody adds any until the end. Waits for no storage.

        Raises: what adding rows raised, here or during a flush.
        """
        with self._summing:
            self._sum_up(self._take_unsummed())
            if self._sums_error is not None:
                raise self._sums_error
            yield self.sums

    def _take_unsummed(self) -> NewRows:
        with self._lock:
            rows, self._unsummed = self._unsummed, {}
        return rows

    def _sum_up(self, new: NewRows) -> None:
        """Add rows to the sums; where that fails there are none any more, and the error is kept."""
        if self.sums is None or not new:
            return
        try:
            rows: Part = {}, {}
            for (kind, name), parts in new.items():
                is_table = kind == "tables"
                rows[0 if is_table else 1][name] = concatenate(name if is_table else None, parts)
            self.sums.add(*rows)
        except Exception as error:
            self.sums, self._sums_error = None, error

    # --- writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the appended rows, and the heartbeat.

        Thread safe. Raises: OSError; nothing is lost then, and the next flush retries.
        """
        with self._io_lock:
            self._flush()

    def take_request(self) -> bytes | None:
        """Return what `gpu-util look` has left in the recording's folder, and remove it there; None = nothing."""
        path = self._storage.join(self.path, LOOK_FILE)
        if not self._storage.exists(path):
            return None
        request = self._storage.read(path, MAX_REQUEST_BYTES)
        self._storage.remove(path)
        return request

    def close(self, status: str) -> None:
        """Seal the recording as "ended" or "interrupted"; closing twice has no effect.

        Raises: OSError.
        """
        if status not in ("ended", "interrupted"):
            raise ValueError(f"a recording is closed as ended or interrupted, not {status!r}")
        with self._io_lock:
            if self._status != "live":
                return
            self._ended_ns = self.facts.get("ended_ns") or self._clock.now()
            self._flush(seal=True)
            self._status = status
            try:
                self._write_manifest()
            except OSError:
                self._status = "live"  # so that close can be retried
                raise

    def write_summary(self, data: bytes) -> None:
        """Write the summary of a closed recording; the next flush after `reopen` removes it. Raises: OSError."""
        with self._io_lock:
            self._write(SUMMARY_FILE, data)
            self._is_summarized = True

    def reopen(self) -> None:
        """Continue after `close`: the recording is live again from the next flush on."""
        with self._io_lock:
            self._status = "live"
            self._ended_ns = None

    def _flush(self, seal: bool = False) -> None:
        """Write all that is new. Raises: OSError, after which the next flush writes the same again.

        Rows go into a small segment, or are sealed with all small ones if that is due; then the top is written, too.

        Args:
            seal: join the small segments into one, whatever their age.
        """
        self._open_folder()
        if self._is_summarized:  # the recording goes on: its summary is no longer true
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove(self._storage.join(self.path, SUMMARY_FILE))
            self._is_summarized = False
        for name in list(self.files):
            self._write(name, self.files[name])
            del self.files[name]
        self._clock.pair()
        is_sealed = self._take_new_rows(seal)
        while any(self._waiting):  # as many rows at a time as fit into a segment
            part, remaining = _split(self._waiting)
            if is_sealed:
                if not self._fits(part):
                    self._seal()
                self._seal(part)
            else:
                self._write_small(part)
            self._waiting = remaining
        if self._small_parts and is_sealed:  # small segments alone, without new rows
            self._seal()
        if self._top_is_due and is_sealed:
            self._write_stretch(seal)
            if self._saved_sums is not None:
                self._write("top.npz", packed(self._saved_sums, self._segments, self._stretches))
                self._covered = self._next_segment
            self._top_is_due = False
            for name in self._superfluous:  # small segments whose rows are in a sealed one that the top lists
                try:
                    self._storage.remove(self._storage.join(self.path, name))
                except OSError:
                    pass  # readers ignore it
            self._superfluous = []
        self._write_manifest()

    def _take_new_rows(self, seal: bool) -> bool:
        """Move appended rows to those that wait for a file; return whether all of these are to be sealed now.

        If so, the sums are saved as they are: of the same rows.
        """
        is_sealed = seal or self._seal_is_due()
        with self._summing if is_sealed else contextlib.nullcontext():
            with self._lock:
                new, self._new = self._new, {}
                self._new_count.clear()
                unsummed, self._unsummed = (self._unsummed, {}) if is_sealed else ({}, self._unsummed)
            if is_sealed:
                self._sum_up(unsummed)
                self._saved_sums = None if self.sums is None else self.sums.saved()
        self._move_to_waiting(new)
        return is_sealed

    def _move_to_waiting(self, new: NewRows) -> None:
        """Move rows to those that wait for a file, adding them to the totals.

        Raises: MemoryError; the rows that are left are flushed the next time.
        """
        if not new:
            return
        try:
            while new:
                key = next(iter(new))
                self._move_rows_to_waiting(key, new[key])
                del new[key]
        except MemoryError:  # the next flush takes the rest
            with self._lock:
                for key, parts in new.items():
                    self._new[key] = parts + self._new.get(key, [])
                    self._new_count[key] += sum(_length(part) for part in parts)
            raise
        if self._unsealed_since_ns is None:
            self._unsealed_since_ns = self._clock.now()

    def _move_rows_to_waiting(self, key: tuple[str, str], parts: list[dict[str, np.ndarray]]) -> None:
        """Move a table's or a group's new rows to those that wait for a file; while writing fails, drop the oldest.

        Raises: MemoryError, before anything is changed.
        """
        kind, name = key
        table = name if kind == "tables" else None
        rows = concatenate(table, parts)
        waiting_rows = self._waiting[0 if table is not None else 1]
        all_rows = concatenate(table, [waiting_rows[name], rows]) if name in waiting_rows else rows
        count = _length(all_rows)
        if count > MAX_WAITING_ROWS and self._failed_writes:
            self._dropped_rows += count - MAX_WAITING_ROWS
            all_rows = {column: part[-MAX_WAITING_ROWS:] for column, part in all_rows.items()}
        with self._lock:
            self._add_to_totals(key, rows)
        waiting_rows[name] = all_rows

    def _seal_is_due(self) -> bool:
        """Return whether rows are old or many enough to be sealed, or wait for it since a flush that failed."""
        with self._lock:
            size = sum(column.nbytes for parts in self._new.values() for rows in parts for column in rows.values())
            rows = self._new_count + self._small_rows
        is_large = self._small_bytes + size >= SEAL_BYTES or max(rows.values(), default=0) > MAX_ROWS
        is_old = self._unsealed_since_ns is not None and self._clock.now() - self._unsealed_since_ns >= SEAL_NS
        return self._top_is_due or any(self._waiting) or is_large or is_old

    def _fits(self, part: Part) -> bool:
        """Return whether one segment may hold these rows and those of the small ones."""
        return not self._small_parts or max((_sizes(part) + self._small_rows).values()) <= MAX_ROWS

    def _write_small(self, part: Part) -> None:
        """Write rows as a small segment of their own, which a sealed one replaces later."""
        data = encode_segment(*part, self._level)
        self._write(segment_name(self._next_segment, self._next_segment), data)
        self._next_segment += 1
        self._small_parts.append(part)
        self._small_rows += _sizes(part)
        tables = (columns for rows in part for columns in rows.values())
        self._small_bytes += sum(column.nbytes for table in tables for column in table.values())

    def _seal(self, new: Part | None = None) -> None:
        """Write the rows of the small segments as one, and with them `new` rows that are in no file yet (None = none).

        The small ones are removed only when the top lists the new one, so that a reader (or a
        crash) in between sees all rows once: it prefers the file that holds more numbers.
        """
        tables, samples = joined([*self._small_parts, new] if new is not None else self._small_parts)
        first, last = self._next_segment - len(self._small_parts), self._next_segment - (new is None)
        data = encode_segment(tables, samples, SEALED_LEVEL)
        info = SegmentInfo.of(first, last, len(data), tables, samples)
        self._write(info.name, data)
        if last > first:
            self._superfluous += [segment_name(n, n) for n in range(first, self._next_segment)]
        self._next_segment = last + 1
        self._small_parts, self._small_rows, self._small_bytes = [], Counter(), 0
        self._unsealed_since_ns = None
        self._segments.append(info)
        self._stretch.fold(tables, samples)
        self._top_is_due = True

    def _write_stretch(self, last_one: bool) -> None:
        """Store the top of the newest segments by itself once it has `STRETCH_VALUES`, or at the end of a long run."""
        long = self._stretch.values >= STRETCH_VALUES
        stretches = self._stretches
        if long or (last_one and stretches and self._stretch.values):
            first, last = stretches[-1][1] + 1 if stretches else 0, self._segments[-1].last
            self._write(stretch_name(first, last), packed(self._stretch.saved()))
            stretches.append((first, last))
            self._stretch = Top(self.facts["started_ns"])

    def _write_manifest(self) -> None:
        now = self._clock.now()
        self._flushes += 1
        self._write("manifest.json", manifests.dumps(self.manifest(self._status, now)))

    def manifest(self, status: str, now: int) -> dict[str, Any]:
        """Return the manifest of what was flushed so far; waits for no storage.

        Args:
            status: "live", "ended" or "interrupted".
            now: ns on the recording's clock.
        """
        with self._lock:
            facts = dict(self.facts)
        if self._redact is not None:
            facts = self._redact.value(facts)
        end = facts.get("ended_ns") or self._ended_ns or now
        return {
            **facts,
            "format": [FORMAT_MAJOR, FORMAT_MINOR],
            "writer": __version__,
            "folder": self.name,
            "redacted": self._redact is not None,
            "status": status,
            "ended_ns": None if status == "live" else end,
            "heartbeat_ns": now,
            "heartbeat_wall_ns": time.time_ns(),
            "flush_s": self.flush_s,
            "flushes": self._flushes,
            "sealed": self._next_segment,
            "covered": self._covered,
            "rows": {table: rows for table, rows in self._total_rows.items() if rows},
            "dropped_rows": self._dropped_rows,
            "account": self.account(end),
        }

    def _make_anew(self) -> None:
        """Make the folder again that somebody removed, for all rows that are still in memory."""
        self._storage.make_folder(self.path)
        self.removals += 1
        self._unsealed_since_ns = 0  # seal what the small segments held
        self._top_is_due |= bool(self._segments)

    def _write(self, name: str, data: bytes) -> None:
        """Write a file of the recording, in a new folder if somebody removed it. Raises: OSError."""
        path = self._storage.join(self.path, name)
        try:
            try:
                self._storage.write(path, data)
            except FileNotFoundError:
                self._make_anew()
                self._storage.write(path, data)
        except OSError:
            self._failed_writes = True
            raise
        self._failed_writes = False
        self.answered = time.monotonic()

    def _make_folder(self, root: str, host: str) -> tuple[str, str]:
        """Create a folder with a unique name, without coordination between processes; return its (name, path).

        Raises: OSError.
        """
        join = self._storage.join
        stamp = manifests.folder_stamp(self.facts["started_ns"])
        if self._redact is not None:
            who, process = hashed_host(host), self._redact.token
        else:
            who, process = manifests.safe_name(host), str(self.facts.get("pid", 0))
        base = f"{stamp}-{who}-{self.facts['rank']}-{process}"
        for attempt in range(1000):
            name = base if not attempt else f"{base}.{attempt}"
            path = join(root, "plugins", PLUGIN_NAME, name)
            if self._storage.exists(join(path, "manifest.json")):  # object stores have no folders that could exist
                continue
            try:
                self._storage.make_folder(path)
            except FileExistsError:
                continue
            return name, path
        raise FileExistsError(f"{base} exists a thousand times")


def _split(part: Part) -> tuple[Part, Part]:
    """Return (as many rows of each table and group as fit into one segment, the rest)."""
    first: Part = {}, {}
    remaining: Part = {}, {}
    for kind, rows in enumerate(part):
        for name, columns in rows.items():
            first[kind][name] = {key: column[:MAX_ROWS] for key, column in columns.items()}
            if _length(columns) > MAX_ROWS:
                remaining[kind][name] = {key: column[MAX_ROWS:] for key, column in columns.items()}
    return first, remaining


def _sizes(part: Part) -> Counter[tuple[str, str]]:
    """Return the number of rows by kind and name."""
    kinds = zip(("tables", "samples"), part, strict=True)
    return Counter({(kind, name): _length(columns) for kind, rows in kinds for name, columns in rows.items()})


def _length(rows: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(rows.values())))
