"""Rows as bytes: `.npz` files that are checked before anything is inflated, and their columns.

A container is a compressed `.npz` (a zip of `.npy` members; `numpy.load(…, allow_pickle=False)`
opens it) with one more member, `index.json`. Reading trusts nothing: every size the file claims
is compared with a limit before memory is taken, only plain numbers are accepted, and every error
becomes one `Damaged`.

Columns are kept as bytes: text by dictionary, decimals as whole multiples of their resolution. A
*frame* is a set of equally long columns. It is encoded as one `uint8` matrix of shape
(planes, rows) and a JSON description. A column occupies one plane per byte of its integers (plane 0
is the lowest byte), because bytes of equal significance compress well together. To read a column by
hand: put its `width` planes from number `at` together as little-endian integers `u`, undo the zigzag
`r = (u >> 1) ^ -(u & 1)`, multiply by `unit`, sum up where it is `summed`, add `base`; divide
decimals by `per`. `decode_frame` validates all of it.
"""

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_util_callback.recording.manifest_facts import encodable
from gpu_util_callback.recording.schema import PARTS_PER_UNIT

# Far above what the writer makes (segments of some 256 kB, merged up to 1 MB).
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
_LOCAL_HEADER = 30  # bytes; the last four of them are the lengths of what lies between it and the content
_STAMP = (1980, 1, 1, 0, 0, 0)


class Damaged(ValueError):
    """The file is not valid; the message states in one line what is wrong."""


def checked_ns(value: Any) -> int:
    """Return a time in an index. Raises: Damaged if it is not a time."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        shown = "a huge number of" if isinstance(value, int) else repr(value)[:40]
        raise Damaged(f"a time of {shown} ns")
    return value


def pack(index: Mapping[str, Any], arrays: Mapping[str, np.ndarray], level: int = 6) -> bytes:
    """Build a container's bytes.

    Args:
        index: stored as JSON.
        arrays: name -> stored as an `.npy` member.
        level: of deflate; 0 = not compressed.
    """
    out = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", packing) as archive:

        def add(name: str, data: bytes) -> None:
            info = zipfile.ZipInfo(name, _STAMP)
            info.compress_type = packing
            archive.writestr(info, data, compresslevel=level)

        add(INDEX, json.dumps(index, separators=(",", ":"), allow_nan=False).encode())
        for name, array in arrays.items():
            body = io.BytesIO()
            np.lib.format.write_array(body, array, version=(1, 0), allow_pickle=False)
            add(name + ".npy", body.getvalue())
    return out.getvalue()


class Container:
    """An opened container: `index` (a JSON object) and, on demand, its arrays.

    Raises: Damaged from every method, and nothing else.
    """

    def __init__(self, data: bytes):
        try:
            members = zipfile.ZipFile(io.BytesIO(data)).infolist()
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
                raise Damaged(f"{member.filename[:60]!r} would inflate to {total >> 20} MiB or more; refused")
        self._data = data
        self._members = {member.filename: member for member in members}
        if len(self._members) < len(members):
            raise Damaged("it holds two members of one name")
        try:
            self.index: dict[str, Any] = json.loads(self._read(INDEX))
        except (ValueError, RecursionError) as error:
            raise Damaged(_why("its index is unreadable", error)) from error
        if not isinstance(self.index, dict):
            raise Damaged("its index is no JSON object")

    @property
    def names(self) -> list[str]:
        """The names of its arrays."""
        return [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]

    def array(self, name: str) -> np.ndarray:
        """Return one member as stored (read-only), of at most two dimensions. Raises: Damaged."""
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
        """Return a member's bytes. Raises: Damaged."""
        info = self._members.get(member)
        if info is None:
            raise Damaged(f"{member} is missing")
        try:
            lengths = struct.unpack_from("<HH", self._data, info.header_offset + _LOCAL_HEADER - 4)
            at = info.header_offset + _LOCAL_HEADER + sum(lengths)
            content = self._data[at : at + info.compress_size]
            if info.compress_type == zipfile.ZIP_DEFLATED:
                # No more than was checked when the container was opened; 0 would be no limit.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, info.file_size or 1)
        except (struct.error, zlib.error) as error:
            raise Damaged(_why(f"{member} is corrupt", error)) from error
        if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
            raise Damaged(f"{member} is corrupt: not the bytes that were written")
        return content


def _header_bytes(data: bytes) -> int:
    """Return how many bytes the header of an `.npy` claims, its own first ten included. Raises: ValueError."""
    if not data.startswith(_MAGIC):
        raise ValueError("no .npy of version 1.0")
    return 10 + min(_MOST_HEADER, int.from_bytes(data[8:10], "little"))


@lru_cache(maxsize=256)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, Fortran order, dtype) of a header; many arrays share one. Raises: ValueError."""
    match = _HEADER.fullmatch(data, 10)
    if match is None:
        raise ValueError("its header describes something else, not numbers")
    shape = tuple(int(length) for length in match[3].replace(b",", b" ").split())
    if len(shape) > 2:
        raise ValueError(f"{len(shape)} dimensions")
    try:
        return shape, match[2] == b"True", np.dtype(match[1].decode())
    except TypeError as error:  # a float of one byte
        raise ValueError(str(error)) from error


def _why(message: str, error: Exception) -> str:
    detail = " ".join(str(error).split())[:120]
    return f"{message} ({detail})" if detail else message


def encode_frame(
    columns: Mapping[str, Sequence[Any] | np.ndarray], kinds: Mapping[str, str]
) -> tuple[dict[str, Any], np.ndarray]:
    """Encode equally long columns, all at once: a flush has hundreds of short ones.

    Each column is stored as offsets from its first value, or as differences from the value before where these are
    smaller, divided by their common divisor.

    Args:
        columns: name -> int64[n], float64[n] (NaN = absent) or a sequence of n strings.
        kinds: name -> "int", "float" or "text".

    Returns: (description for JSON, uint8[planes, n]).
    """
    described: dict[str, dict[str, Any]] = {name: {"type": kinds[name]} for name in columns}
    rows = len(next(iter(columns.values()))) if columns else 0
    if not rows:
        return {"rows": 0, "columns": described}, np.zeros((0, 0), np.uint8)
    numbers: dict[str, np.ndarray] = {}
    floats = [name for name in columns if kinds[name] == "float"]
    is_absent = np.zeros((len(floats), rows), bool)
    if floats:
        per = [_per(name) for name in floats]
        multiples, is_absent = _multiples(np.stack([columns[name] for name in floats]), np.array(per))
        numbers = dict(zip(floats, multiples, strict=True))
    for name, values in columns.items():
        if kinds[name] == "text":
            numbers[name], described[name]["words"] = _codes(values)
        elif kinds[name] == "int":
            numbers[name] = np.asarray(values, np.int64)
    table = np.stack([numbers[name] for name in columns])  # int64[columns, rows]
    base = table[:, :1]
    offsets = table - base  # may wrap around; decoding wraps, too
    steps = np.diff(table, axis=1, prepend=base)
    summed = _cost(steps) < _cost(offsets)
    residuals = np.where(summed[:, np.newaxis], steps, offsets)
    units = np.maximum(np.gcd.reduce(residuals, axis=1), 1)
    residuals //= units[:, np.newaxis]
    # Zigzag: small numbers of either sign become small unsigned ones: 0, -1, 1, -2 are 0, 1, 2, 3.
    zigzag = ((residuals << 1) ^ (residuals >> 63)).view(np.uint64)
    widths = [(int(most).bit_length() + 7) // 8 for most in zigzag.max(axis=1)]  # bytes of each column's largest number
    at = 0
    numbers_of = (widths, base[:, 0].tolist(), units.tolist(), summed.tolist())
    for entry, width, first, unit, is_summed in zip(described.values(), *numbers_of, strict=True):
        entry |= {"at": at, "width": width, "base": first, "unit": unit, "summed": is_summed}
        at += width
    has_absent = np.flatnonzero(is_absent.any(axis=1)).tolist()  # one more plane for each column with absent values
    for number, name in enumerate(floats):
        described[name]["per"] = per[number]
        if number in has_absent:
            described[name]["absent"] = at + has_absent.index(number)
    octets = zigzag.astype("<u8", copy=False).view(np.uint8).reshape(len(table), rows, 8)  # [columns, rows, 8 bytes]
    used = np.arange(8) < np.array(widths)[:, np.newaxis]
    planes = octets.transpose(0, 2, 1)[used]
    return {"rows": rows, "columns": described}, np.concatenate([planes, is_absent[has_absent].astype(np.uint8)])


@lru_cache(maxsize=4096)
def _per(name: str) -> float:
    """Return how many parts of a unit a column of floats is kept to."""
    return next((per for end, per in PARTS_PER_UNIT.items() if name.endswith(end)), 1000)


def _multiples(values: np.ndarray, per: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float[columns, n] as whole multiples of 1 / per, int64, and which of them are absent.

    An absent value repeats the one before it: that costs least.
    """
    multiples = np.rint(values * per[:, np.newaxis])
    is_absent = ~(np.abs(multiples) < 2.0**62)  # NaN, and what does not fit
    if is_absent.any():
        last = np.maximum.accumulate(np.where(is_absent, 0, np.arange(values.shape[1])), axis=1)
        multiples = np.take_along_axis(np.where(is_absent, 0.0, multiples), last, axis=1)
    return multiples.astype(np.int64), is_absent


def _codes(values: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return (int64[n], the words that these number)."""
    words: dict[str, int] = {}
    codes = np.fromiter((words.setdefault(str(value), len(words)) for value in values), np.int64, len(values))
    return codes, list(words)


def _cost(values: np.ndarray) -> np.ndarray:
    """Estimate the bits that each row of [columns, n] needs, from a subset of its values."""
    subset = values[:, :: max(1, values.shape[1] // 512)]
    return np.log2(np.abs(subset.astype(np.float64)) + 1.0).sum(axis=1)


def decode_frame(
    frame: Mapping[str, Any], matrix: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Decode the named columns of a frame (all by default; unknown names are left out).

    Returns: name -> int64[n], float64[n] or object[n] (strings).
    Raises: Damaged.
    """
    try:
        rows, described = frame["rows"], frame["columns"]
        if matrix.dtype != np.uint8 or matrix.ndim != 2 or matrix.shape[1] != rows:
            raise Damaged(f"{matrix.dtype}{list(matrix.shape)} does not hold {rows} rows")
        wanted_names = described if names is None else [name for name in names if name in described]
        return {name: _decode_column(described[name], matrix) for name in wanted_names} if rows else {}
    except Damaged:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise Damaged(f"not a frame: {str(error)[:100]!r}") from error


def _decode_column(entry: Mapping[str, Any], matrix: np.ndarray) -> np.ndarray:
    """Return a column's values (int64, float64 or object[rows]) from its byte planes. Raises: Damaged.

    Args:
        entry: the column's description.
        matrix: uint8[planes, rows] of all columns.
    """
    at, width, rows = int(entry["at"]), int(entry["width"]), matrix.shape[1]
    if not 0 <= width <= 8 or at < 0 or at + width > len(matrix):
        raise Damaged("planes out of range")
    octets = np.zeros((rows, 8), np.uint8)
    octets[:, :width] = matrix[at : at + width].T
    zigzag = octets.view("<u8").reshape(rows)
    values = ((zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))).view(np.int64)
    values = values * _int64(entry["unit"])
    if entry["summed"]:
        values = np.cumsum(values)
    values = values + _int64(entry["base"])
    if entry["type"] == "int":
        return values
    return _decode_floats(values, entry, matrix) if entry["type"] == "float" else _decode_text(values, entry["words"])


def _int64(value: Any) -> np.int64:
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise Damaged("a constant of it is not a 64-bit integer")
    return np.int64(value)


def _decode_floats(multiples: np.ndarray, entry: Mapping[str, Any], matrix: np.ndarray) -> np.ndarray:
    """Return float64 from multiples of a resolution, NaN where a plane says that a value is absent. Raises: Damaged."""
    per = entry["per"]
    if not isinstance(per, (int, float)) or not 1e-12 <= per <= 1e12:
        raise Damaged("a resolution that nothing is kept to")
    values = multiples / per
    if "absent" in entry:
        at = int(entry["absent"])
        if not 0 <= at < len(matrix):
            raise Damaged("planes out of range")
        values[matrix[at] != 0] = np.nan
    return values


def _decode_text(codes: np.ndarray, words: Any) -> np.ndarray:
    """Return the words of a dictionary that codes stand for, object[n]. Raises: Damaged."""
    if not all(isinstance(word, str) for word in words):
        raise Damaged("its dictionary holds other things than words")
    if codes.min() < 0 or codes.max() >= len(words):
        raise Damaged("a word is missing from the dictionary")
    dictionary = np.empty(len(words), object)
    dictionary[:] = [encodable(word) for word in words]
    return dictionary[codes]
