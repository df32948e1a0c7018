"""Rows as bytes: `.npz` files that are checked before anything is inflated, and their columns.

A container is a compressed `.npz` (a zip of `.npy` members; `numpy.load(…, allow_pickle=False)`
opens it) with one more member, `index.json`. Reading trusts nothing: every size the file claims
is compared with a limit before memory is taken, only plain numbers are accepted, and every error
becomes one `Damaged`.

Columns are kept as bytes: integers as deltas, decimals as scaled integers, text by dictionary. A
*frame* is a set of equally long columns. It is encoded as one `uint8` matrix of shape
(planes, rows) and a JSON description. An integer column occupies one plane per byte of its
residuals (plane 0 is the lowest byte), because bytes of equal significance compress well
together. To read a column by hand: put its planes together as little-endian integers `u`, undo the
zigzag `r = (u >> 1) ^ -(u & 1)`, add `middle`, then for each of `heads`, the last one first,
`r = head + cumsum(r)`; multiply by `unit` and add `base`. `decode_frame` validates all of it.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_util_callback.recording.manifest_facts import encodable

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
_STAMP = (1980, 1, 1, 0, 0, 0)


class Damaged(ValueError):
    """The file is not valid; the message states in one line what is wrong."""


class OtherFormat(Damaged):
    """Another version of this package wrote the file."""

    def __init__(self, subject: str, version: Any, expected: int):
        super().__init__(f"{subject} format {version!r}, expected {expected}")


def checked_ns(value: Any) -> int:
    """Return a time in an index. Raises: Damaged where it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        shown = "a huge number of" if isinstance(value, int) else repr(value)[:40]
        raise Damaged(f"a time of {shown} ns")
    return value


def pack(index: Mapping[str, Any], arrays: Mapping[str, np.ndarray], level: int = 6) -> bytes:
    """Build a container: `index` as JSON, `arrays` as `.npy` members; not deflated at `level` 0."""
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
                raise Damaged(f"{member.filename[:60]!r} would inflate to {total >> 20} MiB or more; refused")
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


_SCALES = (1, 10, 100, 1000)
_EXACT = 2**53  # beyond it a float64 cannot represent every integer

# How a column follows from others of the frame, so that only the residual must be stored:
#   ("chain", {"duration_ns": 1})     x[i] - x[i-1] - duration[i-1]
#   ("sum", {"a": 1, "b": -1})        x[i] - a[i] + b[i]
Prediction = tuple[str, Mapping[str, int]]


class FrameError(ValueError):
    """A frame's description and its bytes do not fit together."""


def encode_frame(
    columns: Mapping[str, np.ndarray],
    kinds: Mapping[str, str],
    predictions: Mapping[str, Prediction] | None = None,
    quanta: Mapping[str, float] | None = None,
) -> tuple[dict[str, Any], np.ndarray]:
    """Encode equally long columns.

    Args:
        columns: name -> int64[n], float64[n] (NaN = absent) or a sequence of n strings.
        kinds: name -> "int", "float" or "text".
        predictions: name -> how an integer column follows from unpredicted ones.
        quanta: name -> resolution for floats that are not short decimals; without it they are
            kept exactly.

    Returns: (description for JSON, uint8[planes, n]).
    """
    predictions = {
        name: rule
        for name, rule in (predictions or {}).items()
        if name in columns and all(other in columns for other in rule[1])
    }
    rows = len(next(iter(columns.values()))) if columns else 0
    planes: list[np.ndarray] = []
    described: dict[str, dict[str, Any]] = {}
    for name, values in columns.items():
        if kinds[name] == "text":
            entry = _encode_text(values, planes)
        elif kinds[name] == "float":
            entry = _encode_floats(np.asarray(values, np.float64), (quanta or {}).get(name), planes)
        else:
            values = np.asarray(values, np.int64)
            rule = predictions.get(name)
            if rule is None or rows == 0:
                entry = _encode_ints(values, planes)
            else:
                head, residual = _residual(values, rule, columns)
                entry = _encode_ints(residual, planes)
                entry["from"] = [rule[0], dict(rule[1]), head]
        described[name] = {"type": kinds[name], **entry}
    matrix = np.concatenate(planes) if planes else np.zeros((0, rows), np.uint8)
    return {"rows": rows, "columns": described}, matrix


def plain_frame(columns: Mapping[str, np.ndarray], kinds: Mapping[str, str]) -> tuple[dict[str, Any], np.ndarray]:
    """Encode as `encode_frame` does, in a tenth of the time and a few times the space.

    Nothing is sought that would make columns smaller; floats are kept exactly. For rows that are
    encoded again soon.
    """
    described: dict[str, dict[str, Any]] = {}
    numbers = []
    for name, values in columns.items():
        entry: dict[str, Any] = {"type": kinds[name]}
        described[name] = entry
        if kinds[name] == "text":
            values, entry["words"] = _codes(values)
        elif kinds[name] == "float":
            values, entry["bits"] = np.ascontiguousarray(values, np.float64).view(np.int64), 64
        numbers.append(np.asarray(values, np.int64))
    rows = len(numbers[0]) if numbers else 0
    if not rows:
        return encode_frame(columns, kinds)
    table = np.stack(numbers)
    bases = table[:, 0].copy()
    zigzag = _zigzag(table - bases[:, np.newaxis])
    widths = [(int(most).bit_length() + 7) // 8 for most in zigzag.max(axis=1)]
    at = 0
    for entry, base, width in zip(described.values(), bases.tolist(), widths, strict=True):
        entry.update(at=at, width=width, base=base, heads=[])
        at += width
    octets = zigzag.astype("<u8", copy=False).view(np.uint8).reshape(len(numbers), rows, 8)
    used = np.arange(8) < np.array(widths)[:, np.newaxis]
    return {"rows": rows, "columns": described}, octets.transpose(0, 2, 1)[used]


def decode_frame(
    frame: Mapping[str, Any], matrix: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Decode the named columns of a frame (all by default; unknown names are left out).

    Returns: name -> int64[n], float64[n] or object[n] (strings).
    Raises: FrameError for any damage.
    """
    try:
        rows, described = frame["rows"], frame["columns"]
        if matrix.dtype != np.uint8 or matrix.ndim != 2 or matrix.shape[1] != rows:
            raise FrameError(f"{matrix.dtype}{list(matrix.shape)} does not hold {rows} rows")
        wanted_names = list(described if names is None else (n for n in names if n in described))
        decoded: dict[str, np.ndarray] = {}
        for name in wanted_names:
            _decode_column(name, described, matrix, decoded)
        return {name: decoded[name] for name in wanted_names}
    except FrameError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise FrameError(f"not a frame: {str(error)[:100]!r}") from error


def _decode_column(
    name: str, described: Mapping[str, Any], matrix: np.ndarray, decoded: dict[str, np.ndarray], depth: int = 0
) -> None:
    """Put a column into `decoded`, after the columns it depends on."""
    if name in decoded:
        return
    if depth > 2:
        raise FrameError(f"column {name} follows from itself")
    entry = described[name]
    values = _DECODERS[entry["type"]](entry, matrix)
    if "from" in entry:
        how, weights, head = entry["from"]
        for other in weights:
            if not described[other]["type"] == entry["type"] == "int":
                raise FrameError(f"column {name} follows from something other than an integer")
            _decode_column(other, described, matrix, decoded, depth + 1)
        values = _undo_residual(values, (how, weights), head, decoded)
    decoded[name] = values


# --- integers -------------------------------------------------------------------------------------


def _encode_ints(values: np.ndarray, planes: list[np.ndarray], differences: int = 2) -> dict[str, Any]:
    """Describe int64[n] and append its planes; a constant column needs none.

    First and second differences are taken where they are smaller than their source.
    """
    entry: dict[str, Any] = {"at": sum(map(len, planes)), "width": 0, "base": 0, "heads": []}
    if len(values) == 0:
        return entry
    if (values == values[0]).all():  # most columns, and nothing else has to be found out
        return {**entry, "base": int(values[0])}
    base = int(np.partition(values, len(values) // 2)[len(values) // 2])
    offsets = values - base  # may wrap around; decoding wraps, too
    unit = 1
    if abs(int(values.max()) - int(values.min())) < 2**62:
        unit = int(np.gcd.reduce(offsets)) or 1
        if unit > 1:
            offsets = offsets // unit
    entry["base"] = base
    if unit > 1:
        entry["unit"] = unit
    heads: list[int] = []
    best = _cost(offsets)
    for _ in range(differences if len(offsets) > 1 and best else 0):
        step = np.empty_like(offsets)
        np.subtract(offsets[1:], offsets[:-1], out=step[1:])
        step[0] = step[1]  # like its neighbour, since a constant costs nothing
        cost = _cost(step)
        if cost >= best:
            break
        heads.append(_wrap(int(offsets[0]) - int(step[0])))
        offsets, best = step, cost
    entry["heads"] = heads
    # Centred, so that the common values are the small ones.
    middle = int(np.partition(offsets, len(offsets) // 2)[len(offsets) // 2])
    if middle:
        entry["middle"] = middle
        offsets = offsets - middle
    zigzag = _zigzag(offsets)
    width = (int(zigzag.max()).bit_length() + 7) // 8
    entry["width"] = width
    if width:
        octets = np.ascontiguousarray(zigzag.astype("<u8")).view(np.uint8)
        planes.append(np.ascontiguousarray(octets.reshape(-1, 8)[:, :width].T))
    return entry


def _zigzag(values: np.ndarray) -> np.ndarray:
    """Return int64 as uint64, small ones as small ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _cost(values: np.ndarray) -> float:
    """Estimate the bits `values` need from a subset of them."""
    subset = values[:: max(1, len(values) // 512)]
    return float(np.log2(np.abs(subset.astype(np.float64)) + 1.0).sum())


def _decode_ints(entry: Mapping[str, Any], matrix: np.ndarray) -> np.ndarray:
    at, width, rows = int(entry["at"]), int(entry["width"]), matrix.shape[1]
    if not 0 <= width <= 8 or at < 0 or at + width > len(matrix) or len(entry["heads"]) > 2:
        raise FrameError("planes out of range")
    octets = np.zeros((rows, 8), np.uint8)
    octets[:, :width] = matrix[at : at + width].T
    zigzag = octets.view("<u8").reshape(rows)
    values = ((zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))).view(np.int64)
    values = values + _int64(entry.get("middle", 0))
    for head in reversed(entry["heads"]):
        values = np.cumsum(values) + _int64(head)
    unit = entry.get("unit", 1)
    if unit != 1:
        values = values * _int64(unit)
    return values + _int64(entry["base"])


def _int64(value: Any) -> np.int64:
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise FrameError("a constant of it is not a 64-bit integer")
    return np.int64(value)


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _weighted(weights: Mapping[str, int], columns: Mapping[str, Any]) -> np.ndarray:
    total: Any = 0
    for other, weight in weights.items():
        total = total + np.asarray(columns[other], np.int64) * _int64(weight)
    return total


def _residual(values: np.ndarray, rule: Prediction, columns: Mapping[str, Any]) -> tuple[int, np.ndarray]:
    how, weights = rule
    predicted = _weighted(weights, columns)
    if how == "sum":
        return 0, values - predicted
    residual = np.zeros_like(values)
    residual[1:] = values[1:] - values[:-1] - predicted[:-1]
    return int(values[0]), residual


def _undo_residual(residual: np.ndarray, rule: Prediction, head: int, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    how, weights = rule
    predicted = _weighted(weights, columns)
    if how == "sum":
        return residual + predicted
    if how != "chain":
        raise FrameError(f"unknown prediction {how!r}")
    residual = residual.copy()
    residual[1:] += predicted[:-1]
    return np.cumsum(residual) + _int64(head)


# --- floats ---------------------------------------------------------------------------------------


def _encode_floats(values: np.ndarray, quantum: float | None, planes: list[np.ndarray]) -> dict[str, Any]:
    """Describe float64[n]: scaled integers where that is exact (or `quantum` allows it)."""
    absent = np.isnan(values)
    entry: dict[str, Any] = {}
    if absent.any():
        if absent.all():
            return {"absent": "all"}
        entry["absent"] = sum(map(len, planes))
        planes.append(absent.astype(np.uint8)[np.newaxis])
        # An absent value repeats the previous one, the cheapest encoding.
        last = np.maximum.accumulate(np.where(absent, -1, np.arange(len(values))))
        first = int(np.argmin(absent))
        values = values[np.where(last < 0, first, last)]
    integers = None
    largest = np.abs(values).max(initial=0)
    if largest < _EXACT:  # NaN is gone, infinities are not
        for scale in _SCALES:
            scaled = np.rint(values * scale)
            if largest * scale < _EXACT and (scaled / scale == values).all():
                integers = scaled.astype(np.int64)
                entry["scale"] = scale
                break
        else:
            if quantum is not None and largest / quantum < _EXACT:
                integers = np.rint(values / quantum).astype(np.int64)
                entry["quantum"] = quantum
    if integers is None:
        integers = np.ascontiguousarray(values).view(np.int64)  # the bits themselves
        entry["bits"] = 64
    # Samples rise and fall: second differences only cost time.
    return {**_encode_ints(integers, planes, differences=1), **entry}


def _decode_floats(entry: Mapping[str, Any], matrix: np.ndarray) -> np.ndarray:
    if entry.get("absent") == "all":
        return np.full(matrix.shape[1], np.nan)
    integers = _decode_ints(entry, matrix)
    if "bits" in entry:
        values = integers.view(np.float64).copy()
    elif "quantum" in entry:
        values = integers * _resolution(entry["quantum"])
    else:
        values = integers / _resolution(entry["scale"])
    if "absent" in entry:
        at = int(entry["absent"])
        if not 0 <= at < len(matrix):
            raise FrameError("planes out of range")
        values[matrix[at] != 0] = np.nan
    return values


def _resolution(value: Any) -> float:
    """Return a checked factor or divisor for the integers."""
    if not isinstance(value, (int, float)) or not 1e-12 <= value <= 1e12:
        raise FrameError("a resolution that nothing is kept to")
    return float(value)


# --- text -----------------------------------------------------------------------------------------


def _encode_text(values: Sequence[Any] | np.ndarray, planes: list[np.ndarray]) -> dict[str, Any]:
    codes, words = _codes(values)
    return {**_encode_ints(codes, planes), "words": words}


def _codes(values: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return (int64[n], the words that these number)."""
    words: dict[str, int] = {}
    codes = np.fromiter((words.setdefault(str(value), len(words)) for value in values), np.int64, len(values))
    return codes, list(words)


def _decode_text(entry: Mapping[str, Any], matrix: np.ndarray) -> np.ndarray:
    codes = _decode_ints(entry, matrix)
    if not all(isinstance(word, str) for word in entry["words"]):
        raise FrameError("its dictionary holds other things than words")
    words = np.empty(len(entry["words"]), object)
    words[:] = [encodable(word) for word in entry["words"]]
    if len(codes) and (codes.min() < 0 or codes.max() >= len(words)):
        raise FrameError("a word is missing from the dictionary")
    return words[codes]


_DECODERS = {"int": _decode_ints, "float": _decode_floats, "text": _decode_text}
