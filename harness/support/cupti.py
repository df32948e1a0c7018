"""CUPTI's activity records through ctypes, and the stand-in library that plays it without a GPU.

    cupti = Cupti(build_standin(folder))            # or Cupti(loaded()): the one that the framework has loaded
    attachment = Attachment(cupti)                  # Refused, where another tool holds CUPTI
    ...
    attachment.detach()
    records = attachment.records()                  # kind, start_ns, end_ns of each

Two interfaces: that of one subscriber a process, which all versions have, and from CUPTI 13.3 and driver r610 on that
of several, where the first to come allows it (`several=True`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parent / "cupti_standin.c"
MEMCPY, MEMSET, KERNEL = 1, 2, 10
KINDS = (KERNEL, MEMCPY, MEMSET)
RECORD = np.dtype([("kind", "<u4"), ("start_ns", "<u8"), ("end_ns", "<u8")])
BUFFER_BYTES = 4 << 20
FORCED = 1
MULTIPLE = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_END = 12  # CUPTI_ERROR_MAX_LIMIT_REACHED

_POINTER, _SIZE = ctypes.POINTER, ctypes.c_size_t
_REQUESTED = ctypes.CFUNCTYPE(None, _POINTER(ctypes.c_void_p), _POINTER(_SIZE), _POINTER(_SIZE))
_REQUESTED_V2 = ctypes.CFUNCTYPE(None, _POINTER(ctypes.c_void_p), _POINTER(_SIZE), _POINTER(_SIZE), ctypes.c_void_p)
_COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, _SIZE, _SIZE)
_COMPLETED_V2 = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _SIZE, _SIZE, ctypes.c_void_p)
_EVENT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)


class _Parameters(ctypes.Structure):
    """CUpti_SubscriberParams."""

    _fields_ = (
        ("struct_size", _SIZE),
        ("name", ctypes.c_char_p),
        ("old_name", ctypes.c_void_p),
        ("old_size", _SIZE),
        ("several", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 7),
    )


class CuptiError(RuntimeError):
    """A call of CUPTI failed.

    Args:
        call: its name.
        code: what it returned.
        text: what CUPTI calls that.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {code} ({text})")
        self.code = code


class Refused(CuptiError):
    """Another tool has subscribed, and lets nobody in beside it; `holder`: its name, where CUPTI tells."""

    holder = ""


def build_standin(folder: str | os.PathLike) -> Path:
    """The stand-in as `libcupti.so.13` in that folder; skips the test without a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        import pytest

        pytest.skip("no C compiler to build the stand-in CUPTI with")
    library = Path(folder) / "libcupti.so.13"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True)
    return library


def launch(standin: Cupti, kernels: int, copies: int = 0, kernel_ns: int = 67_000, gap_ns: int = 5_000) -> None:
    """Play a step of a framework on the stand-in's GPU."""
    standin.library.standin_launch(kernels, copies, ctypes.c_uint64(kernel_ns), ctypes.c_uint64(gap_ns))


def loaded() -> Path | None:
    """The libcupti that this process has loaded: the framework's; two of them in a process do not see one another."""
    found = re.search(r"(/\S*libcupti\.so[.\d]*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return Path(found[1]) if found else None


class Cupti:
    """A libcupti: each call raises `CuptiError` where it fails."""

    def __init__(self, library: str | os.PathLike) -> None:
        self.path = Path(library)
        self.library = ctypes.CDLL(str(library))

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuptiGetResultString(code, ctypes.byref(text))
            kind = Refused if code == MULTIPLE else CuptiError
            raise kind(name, code, (text.value or b"?").decode())

    def has(self, name: str) -> bool:
        return hasattr(self.library, name)

    @property
    def version(self) -> int:
        """As CUPTI_API_VERSION: 28 = CUDA 12.9, 130300 = CUDA 13.3."""
        version = ctypes.c_uint32()
        self.call("cuptiGetVersion", ctypes.byref(version))
        return version.value

    def now_ns(self) -> int:
        """The time by the clock of the records."""
        time_ns = ctypes.c_uint64()
        self.call("cuptiGetTimestamp", ctypes.byref(time_ns))
        return time_ns.value


class Attachment:
    """A subscription to the records of kernels, copies and fills, from now until `detach`.

    CUPTI asks for buffers on any thread of the process, and returns full ones on a thread of its own: nothing happens
    there but a pop and an append. At the end of the process it would call into a Python that is no more, so it is left
    before; in a forked child nothing of it is used.

    Args:
        several: by the interface that lets other subscribers in.
        buffers: how many may be in use at once; where none is free, CUPTI drops records.
        most: records that a buffer may have; 0 = as many as fit.
    """

    def __init__(self, cupti: Cupti, several: bool = False, buffers: int = 16, most: int = 0) -> None:
        self.cupti = cupti
        self.several = several
        self.dropped = 0  # records for which there was no room
        self._decoded: list[np.ndarray] = []
        self._most = most
        self._pid = os.getpid()
        self._free = deque(np.empty(BUFFER_BYTES // 8, np.uint64) for _ in range(buffers))
        self._lent: dict[int, np.ndarray] = {}  # by address
        self._full: deque[tuple[np.ndarray, int]] = deque()  # with its valid bytes
        self._sizes: dict[int, int] = {}
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()
        self.attached = False
        self._callbacks = self._make_callbacks()
        self._subscribe()
        try:
            for kind in KINDS:
                self._scoped("cuptiActivityEnable", kind, config=True)
        except CuptiError:
            self.cupti.call("cuptiUnsubscribe", self._handle)
            raise
        self.attached = True
        atexit.register(self.detach)

    def _make_callbacks(self) -> tuple:
        """What CUPTI calls; kept here, since C keeps no reference."""

        def requested(buffer, size, most, *_):
            own = self._free.popleft() if self._free and os.getpid() == self._pid else None
            if own is None:
                buffer[0], size[0] = None, 0
                return
            self._lent[own.ctypes.data] = own
            buffer[0], size[0], most[0] = own.ctypes.data, own.nbytes, self._most

        def completed(address: int, valid: int) -> None:
            own = self._lent.pop(address, None)
            if own is not None and os.getpid() == self._pid:
                self._full.append((own, valid))

        if self.several:
            return (
                _EVENT(lambda *_: None),
                _REQUESTED_V2(requested),
                _COMPLETED_V2(lambda buffer, size, valid, _: completed(buffer, valid)),
            )
        return (
            _EVENT(lambda *_: None),
            _REQUESTED(requested),
            _COMPLETED(lambda context, stream, buffer, size, valid: completed(buffer, valid)),
        )

    def _subscribe(self) -> None:
        event, requested, completed = self._callbacks
        handle = ctypes.byref(self._handle)
        try:
            if self.several:
                self.cupti.call("cuptiSubscribe_v2", handle, event, None, ctypes.byref(self._parameters(True)))
            else:
                self.cupti.call("cuptiSubscribe", handle, event, None)
        except Refused as refused:
            refused.holder = self._ask_holder(event)
            raise
        self._scoped("cuptiActivityRegisterCallbacks", requested, completed)

    def _parameters(self, several: bool) -> _Parameters:
        """With a buffer for the name of who was there before; `several` is unknown before 13.3, and left out there."""
        self._holder = ctypes.create_string_buffer(64)
        size = ctypes.sizeof(_Parameters) if several else _Parameters.several.offset
        return _Parameters(size, b"gpu-util", ctypes.addressof(self._holder), 64, several)

    def _ask_holder(self, event: object) -> str:
        """Who has subscribed, by asking once more with a place for the name; "" = CUPTI does not tell."""
        if not self.cupti.has("cuptiSubscribe_v2"):
            return ""
        parameters = self._parameters(self.several)
        try:
            self.cupti.call("cuptiSubscribe_v2", ctypes.byref(self._handle), event, None, ctypes.byref(parameters))
            self.cupti.call("cuptiUnsubscribe", self._handle)
        except CuptiError:
            pass
        return self._holder.value.decode(errors="replace")

    def _scoped(self, name: str, *arguments: object, config: bool = False) -> None:
        """A call with the subscription where there may be several, else of the whole process."""
        if self.several:
            self.cupti.call(f"{name}_v2", self._handle, *arguments, *([None] if config else []))
        else:
            self.cupti.call(name, *arguments)

    def flush(self) -> None:
        """Have CUPTI hand over what it has; waits for that."""
        self.cupti.call("cuptiActivityFlushAll", FORCED)

    def detach(self) -> None:
        """End the subscription; the records until now stay. Does nothing the second time, and in a forked child."""
        with self._lock:
            attached, self.attached = self.attached, False
        atexit.unregister(self.detach)
        if not attached or os.getpid() != self._pid:
            return
        try:
            for kind in KINDS:
                self._scoped("cuptiActivityDisable", kind, config=True)
            self.flush()
            dropped = ctypes.c_size_t()
            self._scoped("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(dropped))
            self.dropped += dropped.value
            self._decoded = [self.records()]  # while CUPTI still answers for this subscription
        finally:
            self.cupti.call("cuptiUnsubscribe", self._handle)

    def records(self) -> np.ndarray:
        """All records handed over since the last call, as `RECORD`; their buffers are free again."""
        decoded = [np.empty(0, RECORD), *self._decoded]
        self._decoded = []
        while self._full:
            own, valid = self._full.popleft()
            decoded.append(decode(own.view(np.uint8)[:valid], self._sizes, self._size_after(own, valid)))
            self._free.append(own)
        return np.concatenate(decoded)

    def _size_after(self, own: np.ndarray, valid: int) -> Callable[[int], int]:
        """A function that says how long the record at an offset is, by CUPTI's own step to the next."""
        start = own.ctypes.data

        def size(at: int) -> int:
            following = ctypes.c_void_p(start + at)
            arguments = (ctypes.c_void_p(start), _SIZE(valid), ctypes.byref(following))
            if self.several:
                code = self.cupti.library.cuptiActivityGetNextRecord_v2(self._handle, *arguments)
            else:
                code = self.cupti.library.cuptiActivityGetNextRecord(*arguments)
            return valid - at if code == _END else (following.value or 0) - start - at

        return size


def decode(buffer: np.ndarray, sizes: dict[int, int], size_after: Callable[[int], int]) -> np.ndarray:
    """The records of a buffer (uint8[valid bytes]), without a look at each: neighbours of one kind are read at once.

    Args:
        sizes: bytes of a record, by kind; what is learnt is added.
        size_after: how long the record at this offset is; asked once a kind.
    """
    words = buffer.view("<u4")
    parts = [np.empty(0, RECORD)]
    at, guess = 0, 64
    while at < len(buffer):
        kind = int(words[at // 4])
        size = sizes.get(kind) or sizes.setdefault(kind, size_after(at))
        if size <= 0 or size % 8 or at + size > len(buffer):
            sizes.pop(kind)
            raise ValueError(f"no record of kind {kind} at {at} of {len(buffer)} bytes")
        most = (len(buffer) - at) // size
        guess = min(guess, most)
        while True:  # a run may be longer than the last one
            rows = buffer[at : at + guess * size].reshape(guess, size)
            others = np.flatnonzero(rows[:, :4].copy().view("<u4")[:, 0] != kind)
            if len(others) or guess == most:
                break
            guess = min(2 * guess, most)
        count = int(others[0]) if len(others) else guess
        run = np.empty(count, RECORD)
        run["kind"] = kind
        times = rows[:count, 16:32].copy().view("<u8")  # kernels, copies and fills have them in one place
        run["start_ns"], run["end_ns"] = times[:, 0], times[:, 1]
        parts.append(run)
        at += count * size
        guess = max(8, 2 * count)
    return np.concatenate(parts)


def busy_ns(records: np.ndarray, kinds: tuple[int, ...] = (KERNEL,)) -> int:
    """The time in which at least one of these ran; side by side counts once."""
    chosen = np.sort(records[np.isin(records["kind"], kinds)], order="start_ns")
    if not len(chosen):
        return 0
    ends = np.maximum.accumulate(chosen["end_ns"])
    before = np.concatenate([chosen["start_ns"][:1], ends[:-1]])
    return int(np.maximum(0, ends.astype("i8") - np.maximum(before, chosen["start_ns"]).astype("i8")).sum())
