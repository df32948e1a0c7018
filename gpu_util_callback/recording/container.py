"""`.npz` files that are checked before anything is inflated.

A container is a compressed `.npz` (a zip of `.npy` members; `numpy.load(…, allow_pickle=False)`
opens it) with one more member, `index.json`. Reading trusts nothing: every size the file claims
is compared with a limit before memory is taken, only plain numbers are accepted, and whatever is
wrong becomes one `Damaged`.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["MAX_FILE_BYTES", "Container", "Damaged", "OtherFormat", "checked_ns", "pack"]

# Far above what the writer makes (segments are sealed at 256 kB, merged up to 1 MB).
MAX_FILE_BYTES = 64 << 20
MAX_MEMBER_BYTES = 64 << 20
MAX_TOTAL_BYTES = 256 << 20
MAX_MEMBERS = 4096

INDEX = "index.json"
_STAMP = (1980, 1, 1, 0, 0, 0)


class Damaged(ValueError):
    """The file is not what it should be; the message says in one line what is wrong."""


class OtherFormat(Damaged):
    """Another version of this package wrote the file."""

    def __init__(self, what: str, found: Any, expected: int):
        super().__init__(f"{what} format {found!r}, expected {expected}")


def checked_ns(value: Any) -> int:
    """A time in an index. Raises: Damaged where it is none."""
    if not isinstance(value, int) or not 0 <= value < 2**62:
        raise Damaged(f"a time of {str(value)[:40]} ns")
    return value


def pack(index: Mapping[str, Any], arrays: Mapping[str, np.ndarray], level: int = 6) -> bytes:
    """Make a container: `index` as JSON, `arrays` as `.npy` members, deflated at `level`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:

        def add(name: str, data: bytes) -> None:
            info = zipfile.ZipInfo(name, _STAMP)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data, compresslevel=level)

        add(INDEX, json.dumps(index, separators=(",", ":"), allow_nan=False).encode())
        for name, array in arrays.items():
            body = io.BytesIO()
            np.lib.format.write_array(body, array, version=(1, 0), allow_pickle=False)
            add(name + ".npy", body.getvalue())
    return out.getvalue()


class Container:
    """An opened container: `index` and, on demand, its arrays.

    Raises: Damaged from every method, and nothing else.
    """

    def __init__(self, data: bytes):
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            members = self._zip.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, NotImplementedError) as e:
            raise Damaged(_why("not a complete .npz file", e)) from e
        if len(members) > MAX_MEMBERS:
            raise Damaged(f"{len(members)} members, more than {MAX_MEMBERS}")
        total = 0
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # Others would be inflated before anybody can look at how much comes.
                raise Damaged(f"{member.filename[:60]!r} is packed in another way; refused")
            total += member.file_size
            if member.file_size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
                raise Damaged(
                    f"{member.filename[:60]!r} would inflate to {total >> 20} MiB or more; refused"
                )
        self._names = {member.filename for member in members}
        try:
            self.index: dict[str, Any] = json.loads(self._read(INDEX))
        except (ValueError, RecursionError) as error:
            raise Damaged(_why("its index is unreadable", error)) from error
        if not isinstance(self.index, dict):
            raise Damaged("its index is no JSON object")

    def __contains__(self, name: str) -> bool:
        return name + ".npy" in self._names

    def array(self, name: str) -> np.ndarray:
        """One member, as stored (read-only)."""
        data = self._read(name + ".npy")
        try:
            begin, shape, fortran, dtype = _header(data[: _header_bytes(data)])
        except (ValueError, TypeError, SyntaxError, EOFError) as error:
            raise Damaged(_why(f"{name} is no array", error)) from error
        if dtype.kind not in "iuf" or dtype.hasobject:
            raise Damaged(f"{name} holds {dtype}, not numbers")
        body = memoryview(data)[begin:]
        count = 1
        for length in shape:  # Python integers: a claimed shape cannot overflow
            count *= length
        if min(shape, default=0) < 0 or count * dtype.itemsize != len(body):
            raise Damaged(f"{name} claims shape {shape} for {len(body)} bytes")
        return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")

    def _read(self, member: str) -> bytes:
        if member not in self._names:
            raise Damaged(f"{member} is missing")
        try:
            # zipfile stops at the size that was checked above and compares the checksum.
            return self._zip.read(member)
        except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, struct.error,
                NotImplementedError, RuntimeError) as error:  # fmt: skip
            raise Damaged(_why(f"{member} is corrupt", error)) from error


def _header_bytes(data: bytes) -> int:
    """How long the header of an `.npy` says it is, its own first bytes included."""
    version = np.lib.format.read_magic(io.BytesIO(data[: len(np.lib.format.MAGIC_PREFIX) + 2]))
    if version != (1, 0):
        raise ValueError(f".npy version {version}")
    return 10 + int.from_bytes(data[8:10], "little")


@lru_cache(maxsize=256)
def _header(data: bytes) -> tuple[int, tuple[int, ...], bool, np.dtype]:
    """(its length, shape, whether columns come first, kind of number): many arrays are alike."""
    stream = io.BytesIO(data)
    stream.seek(8)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    return stream.tell(), shape, fortran, dtype


def _why(what: str, error: Exception) -> str:
    detail = " ".join(str(error).split())[:120]
    return f"{what} ({detail})" if detail else what
