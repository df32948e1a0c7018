"""`.npz` files that are checked before anything is inflated.

A container is a compressed `.npz` (a zip of `.npy` members; `numpy.load(…, allow_pickle=False)`
opens it) with one more member, `index.json`. Reading trusts nothing: every size the file claims
is compared with a limit before memory is taken, only plain numbers are accepted, and every error
becomes one `Damaged`.
"""

import io
import json
import re
import zipfile
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
# A header as NumPy writes it. NumPy's own parser evaluates its input, warns, and raises more.
_HEADER = re.compile(
    rb"\{'descr': '([<>|][iuf][1248])', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \}[ ]*\n?"
)
_MOST_HEADER = 1024
_MAGIC = b"\x93NUMPY\x01\x00"
_STAMP = (1980, 1, 1, 0, 0, 0)


class Damaged(ValueError):
    """The file is not valid; the message states in one line what is wrong."""


class OtherFormat(Damaged):
    """Another version of this package wrote the file."""

    def __init__(self, what: str, found: Any, expected: int):
        super().__init__(f"{what} format {found!r}, expected {expected}")


def checked_ns(value: Any) -> int:
    """Return a time in an index. Raises: Damaged where it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        shown = "a huge number of" if isinstance(value, int) else repr(value)[:40]
        raise Damaged(f"a time of {shown} ns")
    return value


def pack(index: Mapping[str, Any], arrays: Mapping[str, np.ndarray], level: int = 6) -> bytes:
    """Build a container: `index` as JSON, `arrays` as `.npy` members, deflated at `level`."""
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
        except Exception as error:  # zipfile raises many kinds of errors
            raise Damaged(_why("not a complete .npz file", error)) from error
        if len(members) > MAX_MEMBERS:
            raise Damaged(f"{len(members)} members, more than {MAX_MEMBERS}")
        total = 0
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # Others would be inflated before their size can be checked.
                raise Damaged(f"{member.filename[:60]!r} is packed in another way; refused")
            total += member.file_size
            if member.file_size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES:
                raise Damaged(
                    f"{member.filename[:60]!r} would inflate to {total >> 20} MiB or more; refused"
                )
        self._members = {member.filename: member for member in members}
        if len(self._members) < len(members):
            raise Damaged("it holds two members of one name")
        try:
            self.index: dict[str, Any] = json.loads(self._read(INDEX))
        except (ValueError, RecursionError) as error:
            raise Damaged(_why("its index is unreadable", error)) from error
        if not isinstance(self.index, dict):
            raise Damaged("its index is no JSON object")

    def __contains__(self, name: str) -> bool:
        return name + ".npy" in self._members

    def size(self, name: str) -> int:
        """Return the bytes that an array takes unpacked, header included; 0 where there is none."""
        member = self._members.get(name + ".npy")
        return 0 if member is None else member.file_size

    def array(self, name: str) -> np.ndarray:
        """Return one member, as stored (read-only)."""
        data = self._read(name + ".npy")
        try:
            shape, fortran, dtype = _header(data[: _header_bytes(data)])
        except ValueError as error:
            raise Damaged(_why(f"{name} is no array", error)) from error
        body = memoryview(data)[_header_bytes(data) :]
        count = 1
        for length in shape:  # Python integers: a claimed shape cannot overflow
            count *= length
        if count * dtype.itemsize != len(body):
            raise Damaged(f"{name} claims shape {shape} for {len(body)} bytes")
        try:
            return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
        except ValueError as error:  # an empty array with huge lengths
            raise Damaged(_why(f"{name} claims shape {shape}", error)) from error

    def _read(self, member: str) -> bytes:
        info = self._members.get(member)
        if info is None:
            raise Damaged(f"{member} is missing")
        try:
            with self._zip.open(info) as stream:
                # Exactly as much as was checked above: asked for everything, zipfile inflates up to
                # a gigabyte before it checks the size.
                data = stream.read(info.file_size)
        except Exception as error:  # zipfile and zlib raise many kinds of errors
            raise Damaged(_why(f"{member} is corrupt", error)) from error
        if len(data) != info.file_size:
            raise Damaged(f"{member} is shorter than it says")
        return data


def _header_bytes(data: bytes) -> int:
    """Return the length that the header of an `.npy` claims, its own first bytes included."""
    if not data.startswith(_MAGIC):
        raise ValueError("no .npy of version 1.0")
    return 10 + min(_MOST_HEADER, int.from_bytes(data[8:10], "little"))


@lru_cache(maxsize=256)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, Fortran order, dtype) of a header; many arrays share one."""
    found = _HEADER.fullmatch(data, 10)
    if found is None:
        raise ValueError("its header describes something else, not numbers")
    shape = tuple(int(length) for length in found[3].replace(b",", b" ").split())
    if len(shape) > 2:
        raise ValueError(f"{len(shape)} dimensions")
    try:
        return shape, found[2] == b"True", np.dtype(found[1].decode())
    except TypeError as error:  # a float of one byte
        raise ValueError(str(error)) from error


def _why(what: str, error: Exception) -> str:
    detail = " ".join(str(error).split())[:120]
    return f"{what} ({detail})" if detail else what
