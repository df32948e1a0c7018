"""The scalars and the marker event that TensorBoard itself reads, written without TensorFlow.

One event file per fit. Locally it grows by appending. Object stores cannot append, so there the
file in progress is rewritten at each flush until it holds 256 kB, and a further numbered file
follows: the amount uploaded twice stays bounded.
"""

from __future__ import annotations

import io
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from typing import IO

from gpu_util_callback.recording.manifest import ManifestError, parse, safe_name
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.storage import Storage, is_remote, storage_for
from gpu_util_callback.redaction import hashed_host

MARKER_TAG = "gpu_util/recording"
# By this, later fits in the same log directory recognise our own files.
SUFFIX = ".gpu_util"
REMOTE_FILE_BYTES = 256 << 10
# Of records kept in memory while nothing can be written; later ones are left out.
MAX_WAITING_BYTES = 4 << 20

_count = 0
_count_lock = threading.Lock()


class ScalarWriter:
    """Writes one event file of scalars and the marker that makes the tab appear.

    Args:
        log_dir: the TensorBoard run's directory, or any fsspec URL.
        worker: rank; all but worker 0 write into `<log_dir>/worker<k>`, a separate run.
        redact: keep host name and pid out of the file's name.

    Raises: OSError where the directory cannot be made or the file cannot be written.
    """

    def __init__(self, log_dir: str | os.PathLike, worker: int = 0, *, redact: bool = False):
        storage, root = storage_for(log_dir)
        folder = root if worker == 0 else storage.join(root, f"worker{worker}")
        name = _file_name(redact)
        self._lock = threading.Lock()
        self._file: _LocalFile | _RemoteFiles = (
            _RemoteFiles(storage, folder, name) if is_remote(log_dir) else _LocalFile(folder, name)
        )
        self._has_marker = False
        self._known_tags: set[str] = set()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._write(_event(time.time(), 0, _bytes_field(3, b"brain.Event:2")))

    def marker(self, wall_time: float | None = None) -> None:
        """Write the event that shows TensorBoard that this run has a recording."""
        self._has_marker = True
        description = _bytes_field(3, b"A gpu-util-callback recording; see the GPU Utilization tab.")
        metadata = _metadata(PLUGIN_NAME, description, data_class=2)  # DATA_CLASS_TENSOR
        tensor = b"\x08\x07\x12\x00" + _bytes_field(8, b"gpu-util-callback")  # DT_STRING, a scalar's shape
        summary = _value(MARKER_TAG, tensor, metadata)
        self._write(_event(time.time() if wall_time is None else wall_time, 0, _bytes_field(5, summary)))

    def points(self, points: Iterable[tuple[int, Mapping[str, float], float]]) -> None:
        """Write a point for each tag of each step: many at once is far cheaper than one by one.

        Args:
            points: (step, values, wall time): the fit's own batch count plus `next_step_offset`, which
                never goes back; tag -> value, where NaN, infinities and None are absent and write no
                point; seconds since the epoch.
        """
        events = []
        for step, values, wall_time in points:
            finite = ((tag, value) for tag, value in values.items() if value is not None and math.isfinite(value))
            if summary := b"".join(self._point(tag, value) for tag, value in finite):
                events.append(_event(wall_time, step, _bytes_field(5, summary)))
        if events:
            self._write(*events)

    def flush(self) -> None:
        """Make the written events readable by others; a file that somebody removed is begun again.

        Raises: OSError; nothing is lost then, and the next flush retries.
        """
        with self._lock:
            if self._closed:
                return
            self._file.flush()
            if not self._file.removed():
                return
            self._file.begin()
            self._known_tags.clear()
        self._begin()
        if self._has_marker:
            self.marker()
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Flush and close; closing twice has no effect. Raises: OSError."""
        with self._lock:
            if not self._closed:
                self._file.close()
                self._closed = True

    def reopen(self) -> None:
        """Continue after `close`, in the same file. Raises: OSError."""
        with self._lock:
            if self._closed:
                self._file.begin()
                self._closed = False

    def _point(self, tag: str, value: float) -> bytes:
        """Return a point as a value of a summary, in protobuf bytes; a tag's first point has the tag's metadata."""
        metadata = b"" if tag in self._known_tags else _metadata("scalars", b"", data_class=1)  # DATA_CLASS_SCALAR
        self._known_tags.add(tag)
        try:
            number = struct.pack("<f", value)
        except OverflowError:  # more than a float32 holds
            number = struct.pack("<f", math.copysign(math.inf, value))
        return _value(tag, b"\x08\x01\x12\x00" + _bytes_field(5, number), metadata)  # DT_FLOAT, a scalar's shape

    def _write(self, *events: bytes) -> None:
        """Append records; nothing once the file is closed."""
        records = b"".join(map(record, events))
        with self._lock:
            if not self._closed:
                self._file.write(records)


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    """Return TensorBoard's `Event` as bytes of protobuf; importing its modules takes 10 ms and 2 MB."""
    return b"\x09" + struct.pack("<d", wall_time) + (b"\x10" + _varint(step) if step else b"") + content


def _value(tag: str, tensor: bytes, metadata: bytes) -> bytes:
    fields = _bytes_field(1, tag.encode()) + _bytes_field(8, tensor)
    return _bytes_field(1, fields + (_bytes_field(9, metadata) if metadata else b""))


def _metadata(plugin: str, description: bytes, data_class: int) -> bytes:
    """Return a `SummaryMetadata`."""
    return _bytes_field(1, _bytes_field(1, plugin.encode())) + description + b"\x20" + _varint(data_class)


def _bytes_field(number: int, data: bytes) -> bytes:
    """Return a field of protobuf whose value has a length: its number (below 16), its length, its bytes."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return a whole number of 0 or more as protobuf writes it: groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def record(data: bytes) -> bytes:
    """Return one record of an event file: length, its masked CRC-32C, the data, theirs; little-endian.

    TensorBoard's own `RecordWriter` does the same, but importing it imports every summary plugin and boto3 where
    that is installed: 0.2 s of CPU in the first fit, 15 MB.
    """
    length = len(data).to_bytes(8, "little")
    return b"".join((length, _masked_crc32c(length), data, _masked_crc32c(data)))


def _masked_crc32c(data: bytes) -> bytes:
    """Return the CRC-32C of `data` as event files hold it: rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _crc32c_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reflected
    return value


_CRC32C = [_crc32c_of_byte(byte) for byte in range(256)]


class _LocalFile:
    """One file that grows; what could not be written yet waits in memory."""

    def __init__(self, folder: str, name: str):
        self._folder = folder
        self._path = os.path.join(folder, name)  # noqa: PTH118
        self._waiting = bytearray()
        self.begin("xb")

    def begin(self, mode: str = "ab") -> None:
        os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 (storage paths are strings)
        self._out: IO[bytes] = open(self._path, mode, buffering=0)  # noqa: PTH123, SIM115

    def write(self, data: bytes) -> None:
        if len(self._waiting) < MAX_WAITING_BYTES:
            self._waiting += data

    def flush(self) -> None:
        while self._waiting:
            del self._waiting[: self._out.write(self._waiting)]

    def removed(self) -> bool:
        return not (os.fstat(self._out.fileno()).st_nlink or os.path.exists(self._path))  # noqa: PTH110

    def close(self) -> None:
        self.flush()
        self._out.close()


class _RemoteFiles:
    """Numbered files, each written as a whole; the records of the last one wait in memory."""

    def __init__(self, storage: Storage, folder: str, name: str):
        self._storage, self._folder, self._name = storage, folder, name
        self._number = 0
        self._start()

    def _start(self) -> None:
        self._buffer = io.BytesIO()
        self._written = 0

    def write(self, data: bytes) -> None:
        if len(self._buffer.getbuffer()) < MAX_WAITING_BYTES:
            self._buffer.write(data)

    def flush(self) -> None:
        """Write the whole buffer under its name again; begin another file once it has `REMOTE_FILE_BYTES`."""
        data = self._buffer.getvalue()
        if len(data) == self._written:
            return
        stem = self._name.removesuffix(SUFFIX)
        name = f"{stem}.{self._number:06d}{SUFFIX}"
        self._storage.write(self._storage.join(self._folder, name), data)
        self._written = len(data)
        if len(data) >= REMOTE_FILE_BYTES:
            self._number += 1
            self._start()

    def removed(self) -> bool:
        return False

    def begin(self) -> None:
        pass  # the last file is still in memory

    def close(self) -> None:
        self.flush()


def _file_name(redact: bool) -> str:
    """Return a unique name that TensorBoard accepts for an event file, sorted by time."""
    global _count
    with _count_lock:
        _count += 1
        count = _count
    host = socket.gethostname()
    host = hashed_host(host) if redact else safe_name(host)
    process = os.urandom(3).hex() if redact else str(os.getpid())
    now = time.time()
    stamp = f"{int(now):010d}.{int(now * 1000) % 1000:03d}"
    return f"events.out.tfevents.{stamp}.{host}.{process}.{count}{SUFFIX}"


# Recordings that are read for it: more than one, as several processes may record at a time.
NEWEST = 4


def next_step_offset(log_dir: str | os.PathLike) -> int:
    """Return the first step for the scalars of the next fit in this log directory.

    TensorBoard's data server drops every earlier point of a tag whose step goes back, so a second
    fit continues after the highest step of the first. That step is found in the manifests of the
    newest recordings (their fact `scalar_step_offset`, and their number of steps). Our own newest
    event file is read, too, where a recording was removed, damaged or never closed.

    Returns: 0 in a new (or unreadable) log directory.
    """
    try:
        storage, root = storage_for(log_dir)
        offset, complete = _from_manifests(storage, root)
        return offset if complete else max(offset, _from_event_files(storage, root))
    except (OSError, ImportError):
        return 0


def _from_manifests(storage: Storage, root: str) -> tuple[int, bool]:
    """Return one more than the highest step (0 without recordings), and whether every recording read was closed.

    The newest ones suffice: each began after the highest step of those before it.
    """
    folder = storage.join(root, "plugins", PLUGIN_NAME)
    highest = 0
    try:
        names = storage.folders(folder)
    except OSError:
        return 0, False
    complete = bool(names)
    for name in names[-NEWEST:]:
        try:
            data = storage.read(storage.join(folder, name, "manifest.json"), 32 << 20)
            facts, _ = parse(data)
        except (OSError, ManifestError):
            complete = False
            continue
        offset = facts.get("scalar_step_offset")
        if offset is not None:
            highest = max(highest, offset + (facts.get("rows") or {}).get("steps", 0))
        complete &= offset is not None and facts.get("status") in ("ended", "interrupted")
    return highest, complete


def _from_event_files(storage: Storage, root: str) -> int:
    """Return one more than the highest step in our newest event file with points; 0 without one."""
    names = [name for name in storage.names(root) if "tfevents" in name and name.endswith(SUFFIX)]
    for name in reversed(names):
        last = _last_step(storage.read(storage.join(root, name), 1 << 30))
        if last is not None:
            return last + 1
    return 0


def _last_step(data: bytes) -> int | None:
    """Return the step of the last complete record, found by hopping over the records; None if it is no scalar's.

    Args:
        data: of an event file, whose last record may be cut off.
    """
    at, last = 0, None  # offset of the record; (offset, length) of the last one's content
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        if at + 16 + length > len(data):
            break
        last = (at + 12, length)
        at += 16 + length
    if last is None:
        return None
    from tensorboard.compat.proto.event_pb2 import Event  # only where a recording is damaged or was removed

    try:
        event = Event.FromString(data[last[0] : last[0] + last[1]])
    except Exception:  # protobuf's DecodeError has no public path common to all versions
        return None
    tags = [value.tag for value in event.summary.value]
    return event.step if any(tag != MARKER_TAG for tag in tags) else None
