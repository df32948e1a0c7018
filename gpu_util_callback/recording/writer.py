"""The writer of one recording: appends rows and flushes them so that a kill loses little."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_util_callback._version import __version__
from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.facts import Account as AccountFacts
from gpu_util_callback.recording.levels import LevelsBuilder, levels_name
from gpu_util_callback.recording.overview import Overview
from gpu_util_callback.recording.redaction import Redactor, hashed_host
from gpu_util_callback.recording.schema import PLUGIN_NAME, TABLES
from gpu_util_callback.recording.segments import (
    MAX_ROWS,
    MERGED_BYTES,
    Rows,
    SealedIndex,
    Segment,
    complete,
    concatenate,
    encode_segment,
    segment_name,
)
from gpu_util_callback.recording.storage import storage_for
from gpu_util_callback.recording.summary import Account, Summary

__all__ = ["RecordingWriter"]

SEAL_BYTES = 256 << 10
SEAL_NS = 60 * 10**9
# Number of values after which a levels file is written: readers handle those without one.
LEVELS_CELLS = 1 << 22
# Rows kept in memory while nothing can be written; the oldest go first.
MAX_WAITING_ROWS = 4 * MAX_ROWS

OPEN_LEVEL, SEALED_LEVEL = 1, 6


class RecordingWriter:
    """Writes one recording: one process, one fit.

    Rows are appended from any thread and reach the disk at `flush`, which the caller runs every
    `flush_s` seconds. A flush replaces the open segment, and the manifest with its heartbeat; a
    segment is sealed after 60 s or at 256 kB, and the overview is rewritten then.

    Args:
        log_dir: the TensorBoard run's directory, or any fsspec URL.
        facts: known facts about the run; become part of the manifest. `host`, `pid` and `rank`
            name the folder and are filled in when missing; `started_ns` is the start of the account
            (now, when missing).
        clock: the clock of all times.
        redact: keep host names, pids and other users' processes out of every file and name.
        flush_s: seconds between flushes, by which readers judge the heartbeat; by default 2 locally
            and 30 on remote stores.

    Raises: OSError where the folder cannot be made.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        facts: Mapping[str, Any],
        *,
        clock: Clock,
        redact: bool = False,
        flush_s: float | None = None,
    ):
        self._storage, root = storage_for(log_dir)
        self._clock = clock
        self.flush_s = self._storage.default_flush_s if flush_s is None else flush_s
        self.facts: dict[str, Any] = {**manifests.process_facts(), "rank": 0, **facts}
        self.facts.setdefault("started_ns", clock.now())
        host = str(self.facts.get("host") or "unknown")
        self._redact = Redactor({host, manifests.process_facts()["host"]}) if redact else None
        self.name, self.path = self._make_folder(root, host)

        self._lock = threading.Lock()  # the rows waiting, and the facts; held briefly
        self._io_lock = threading.Lock()  # everything below; held while writing
        self._new: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
        self._open_tables: Rows = {}
        self._open_samples: Rows = {}
        self._open_since: int | None = None
        self._open_written = False
        self._number = 0
        self._sealed = SealedIndex()
        self._levels = LevelsBuilder(self.facts["started_ns"])
        self._overview = Overview(self.facts["started_ns"])
        self._overview_is_due = False
        self._account = Account()
        self._summary = Summary()
        self._rows = dict.fromkeys(TABLES, 0)
        self._dropped_rows = 0
        self._flushes = 0
        self._status = "live"
        self._ended_ns: int | None = None
        self._failed_writes = False
        self.bytes_written = 0
        self._write_manifest()

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
        if not len(next(iter(rows.values()))):
            return
        if self._redact is not None:
            for name, kind in TABLES[table].items():
                if kind == "text":
                    rows[name][:] = [self._redact.text(text) for text in rows[name]]
        with self._lock:
            self._new.setdefault(("tables", table), []).append(rows)

    def append_samples(
        self, group: str, columns: Sequence[str], time_ns: np.ndarray, values: np.ndarray
    ) -> None:
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
            raise ValueError(
                f"{group}: {table.shape} values for {len(times)} times and {len(columns)} columns"
            )
        if not len(times):
            return
        rows: dict[str, np.ndarray] = {"time_ns": times}
        rows.update((str(name), table[:, at].copy()) for at, name in enumerate(columns))
        with self._lock:
            self._new.setdefault(("samples", str(group)), []).append(rows)

    def account(self, now_ns: int | None = None) -> AccountFacts:
        """Return the host account so far (see `Account.result`), of all flushed rows."""
        with self._io_lock:
            return self._account.result(
                self.facts["started_ns"], self._clock.now() if now_ns is None else now_ns
            )

    # --- writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the appended rows, and the heartbeat.

        Thread safe. Raises: OSError; nothing is lost then, and the next flush retries.
        """
        with self._io_lock:
            self._flush()

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

    def reopen(self) -> None:
        """Continue after `close`: the recording is live again from the next flush on."""
        with self._io_lock:
            self._status = "live"
            self._ended_ns = None

    def _flush(self, seal: bool = False) -> None:
        self._take_new_rows(seal)
        while self._open_tables or self._open_samples:
            part_tables, rest_tables = _split(self._open_tables)
            part_samples, rest_samples = _split(self._open_samples)
            full = bool(rest_tables or rest_samples)
            since = self._open_since or self._clock.now()
            old = self._clock.now() - since >= SEAL_NS
            if not self._open_written or seal or full or old:
                sealing = seal or full or old
                level = SEALED_LEVEL if sealing else OPEN_LEVEL
                data = encode_segment(part_tables, part_samples, level)
                if not sealing and len(data) >= SEAL_BYTES:
                    sealing = True
                    data = encode_segment(part_tables, part_samples, SEALED_LEVEL)
                self._write(segment_name(self._number, self._number), data)
                self._open_written = True
                if sealing:
                    self._seal(part_tables, part_samples, len(data))
                    self._open_tables, self._open_samples = rest_tables, rest_samples
                    self._open_since = self._clock.now() if full else None
                    self._open_written = False
                    continue
            break
        if self._overview_is_due:
            self._write_levels()
            merged = self._merge_small_ones()
            index, arrays = self._sealed.state()
            index["summary"] = self._summary.state()
            self._write("overview.npz", self._overview.pack(index, arrays))
            self._overview_is_due = False
            for name in merged:
                try:
                    self._storage.remove(self._storage.join(self.path, name))
                except OSError:
                    pass  # a superfluous file; readers ignore it
        self._write_manifest()

    def _take_new_rows(self, seal: bool) -> None:
        """Move appended rows into the open segment, adding them to the totals on the way."""
        ours, wall = self._clock.pair()
        self.append("clock", {"mono_ns": [ours], "wall_ns": [wall]})
        with self._lock:
            new, self._new = self._new, {}
        clock = ("tables", "clock")
        empty = not (self._open_tables or self._open_samples)
        if set(new) == {clock} and (empty or (self._open_written and not seal)):
            # Only a heartbeat: the pairs wait for a segment that has to be written anyway.
            kept = new[clock] if len(new[clock]) < 64 else new[clock][::2]
            with self._lock:
                self._new[clock] = kept + self._new.get(clock, [])
            return
        for (kind, name), parts in new.items():
            rows = concatenate(name if kind == "tables" else None, parts)
            if kind == "tables":
                self._rows[name] += len(next(iter(rows.values())))
                if name == "steps":
                    self._account.add_steps(rows)
                elif name == "phases":
                    self._account.add_phases(rows)
            home = self._open_tables if kind == "tables" else self._open_samples
            held = [home[name], rows] if name in home else [rows]
            rows = concatenate(name if kind == "tables" else None, held)
            waiting = len(next(iter(rows.values())))
            if waiting > MAX_WAITING_ROWS and self._failed_writes:
                self._dropped_rows += waiting - MAX_WAITING_ROWS
                rows = {key: column[-MAX_WAITING_ROWS:] for key, column in rows.items()}
            home[name] = rows
            self._open_written = False
        if self._open_since is None:
            self._open_since = self._clock.now()

    def _seal(self, tables: Rows, samples: Rows, size: int) -> None:
        self._overview.add(tables, samples)
        self._summary.add(tables, samples)
        self._levels.add(tables, samples)
        self._sealed.add(self._number, size, tables, samples)
        self._number += 1
        self._overview_is_due = True

    def _write_levels(self) -> None:
        if self._levels.cells >= LEVELS_CELLS:
            first, last = self._sealed.without_levels, self._number - 1
            self._write(levels_name(first, last), self._levels.pack())
            self._sealed.levels.append([first, last])
            self._levels.clear()

    def _merge_small_ones(self) -> list[str]:
        """Merge the small segments at the end of the list into one; return their file names.

        They are removed only when the overview lists the merged one, so that a reader (or a crash)
        in between sees all rows once: it prefers the file that holds more numbers.
        """
        count = self._sealed.small_ones()
        if not count:
            return []
        merged = self._sealed.entries[-count:]
        names = [segment_name(entry[0], entry[1]) for entry in merged]
        try:
            segments = [
                Segment(self._storage.read(self._storage.join(self.path, name), 4 * MERGED_BYTES))
                for name in names
            ]
            tables = _together(segments, "tables")
            samples = _together(segments, "samples")
        except (OSError, ValueError):
            return []  # one was damaged or removed: leave all as they are
        name = segment_name(merged[0][0], merged[-1][1])
        data = encode_segment(tables, samples, SEALED_LEVEL)
        self._write(name, data)
        self._sealed.merge(count, len(data))
        return names

    def _write_manifest(self) -> None:
        now = self._clock.now()
        with self._lock:
            facts = dict(self.facts)
        self._flushes += 1
        if self._redact is not None:
            facts = self._redact.value(facts)
        end = facts.get("ended_ns") or self._ended_ns or now
        manifest = {
            **facts,
            "format": manifests.format_version(),
            "writer": __version__,
            "folder": self.name,
            "redacted": self._redact is not None,
            "status": self._status,
            "ended_ns": None if self._status == "live" else end,
            "heartbeat_ns": now,
            "heartbeat_wall_ns": time.time_ns(),
            "flush_s": self.flush_s,
            "flushes": self._flushes,
            "sealed": self._number,
            "open": self._open_written,
            "rows": {table: rows for table, rows in self._rows.items() if rows},
            "dropped_rows": self._dropped_rows,
            "account": self._account.result(facts["started_ns"], end),
        }
        self._write("manifest.json", manifests.dumps(manifest))

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._storage.write(self._storage.join(self.path, name), data)
        except OSError:
            self._failed_writes = True
            raise
        self._failed_writes = False
        self.bytes_written += len(data)

    def _make_folder(self, root: str, host: str) -> tuple[str, str]:
        """Create a folder with a unique name, without coordination between processes."""
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
            if self._storage.exists(join(path, "manifest.json")):
                continue
            try:
                self._storage.make_folder(path)
            except FileExistsError:
                continue
            return name, path
        raise FileExistsError(f"{base} exists a thousand times")


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """Return (as many rows as fit into one segment, the rest)."""
    first: Rows = {}
    rest: Rows = {}
    for name, columns in rows.items():
        first[name] = {key: column[:MAX_ROWS] for key, column in columns.items()}
        if len(next(iter(columns.values()))) > MAX_ROWS:
            rest[name] = {key: column[MAX_ROWS:] for key, column in columns.items()}
    return first, rest


def _together(segments: list[Segment], kind: str) -> Rows:
    result: Rows = {}
    if kind == "tables":
        for table in TABLES:
            parts = [segment.table(table) for segment in segments if segment.rows(table)]
            if parts:
                result[table] = concatenate(table, parts)
        return result
    groups = dict.fromkeys(group for segment in segments for group in segment.groups)
    for group in groups:
        parts = [segment.samples(group) for segment in segments if group in segment.groups]
        result[group] = concatenate(None, parts)
    return result
