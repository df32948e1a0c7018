"""Protobuf wire format, many small messages at once: one numpy step per field, not per message.

Python needs about half a microsecond per event even with protobuf's own parser; here all events of
a chunk advance together, one field per round. Everything is bounds-checked: a damaged file raises
`BadMessage` for any content.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Messages with more fields than this are finished one by one, so that a single absurd message
# cannot cost a numpy round per field.
MAX_ROUNDS = 64
_OTHERS_KEPT = 1000
_FEW_FIELDS = 10_000  # that are finished one by one even where there are hardly any messages

_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)


class BadMessage(Exception):
    """The bytes do not follow the format (truncated, or another format)."""


class TooMany(Exception):
    """More entries than a trace has: made up, or far too long a window."""


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types: how a field's value is written; BYTES has its length first


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return one varint: (value, unsigned, below 2**64; position after it). Raises: BadMessage.

    Args:
        at, end: where it begins, and where its message ends.
    """
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            break
    raise BadMessage("a number runs past its message")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of one message, one by one.

    Yields: (field number, wire type, a, b); for length-delimited fields the payload is
    `data[a:b]`, else `a` is the value (as an unsigned number) and `b` the position after it.

    Raises: BadMessage.
    """
    while at < end:
        key, at = varint(data, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise BadMessage("field number 0")
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield number, wire, value, at
        elif wire == BYTES:
            length, at = varint(data, at, end)
            if at + length > end:
                raise BadMessage("a field is longer than its message")
            yield number, wire, at, at + length
            at += length
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            if at + size > end:
                raise BadMessage("a field is longer than its message")
            yield number, wire, int.from_bytes(data[at : at + size], "little"), at + size
            at += size
        else:
            raise BadMessage(f"wire type {wire}")


Spans = tuple[np.ndarray, np.ndarray]


def payloads_of(
    data: bytes, at: int, end: int, numbers: tuple[int, ...], limit: int
) -> tuple[dict[int, Spans], list[tuple[int, int, int, int]]]:
    """Return the payload positions of some fields of one message, and its other fields.

    The loop is written for speed: a line of a trace may hold a million events.

    Args:
        numbers: of length-delimited fields, below 16.
        limit: maximum number of fields.

    Returns: (starts, ends) int64[n] by number, and the first thousand other fields as `fields` yields them
        (a message has a handful).

    Raises: BadMessage, TooMany.
    """
    positions = {number: (array("q"), array("q")) for number in numbers}
    add_to = {number << 3 | 2: (starts.append, ends.append) for number, (starts, ends) in positions.items()}
    other_fields: list[tuple[int, int, int, int]] = []
    fields_left = limit
    while at < end:
        adds = add_to.get(data[at])
        if adds is not None:  # one of the wanted fields: its tag takes a byte
            add_start, add_end = adds
            at += 1
            if at >= end:
                raise BadMessage("a field has no length")
            length = data[at]
            if length < 128:  # a varint of one byte
                at += 1
            else:
                length, at = varint(data, at, end)
            add_start(at)
            at += length
            if at > end:
                raise BadMessage("a field is longer than its message")
            add_end(at)
        else:  # another field
            other = next(fields(data, at, end))
            at = other[3]
            if len(other_fields) < _OTHERS_KEPT:
                other_fields.append(other)
        fields_left -= 1
        if fields_left < 0:
            raise TooMany(f"more than {limit:,} entries")
    spans = {
        number: (np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64))
        for number, (starts, ends) in positions.items()
    }
    return spans, other_fields


class Buffer:
    """A stretch of bytes that numpy reads at any position, eight bytes at a time."""

    def __init__(self, data: bytes | memoryview):
        padded = np.zeros(len(data) + 16, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        self.bytes = padded  # uint8, with room for two words behind the end
        self.size = len(data)
        # An overlapping little-endian word at every byte.
        self.words: np.ndarray = np.ndarray((len(data) + 8,), np.dtype("<u8"), padded.data, strides=(1,))

    def slice(self, start: int, end: int) -> bytes:
        return self.bytes[start:end].tobytes()

    def text(self, column: Fields, row: int) -> str:
        """Return the payload of one message's field as text."""
        return self.slice(int(column.value[row]), int(column.end[row])).decode("utf-8", "replace")


@dataclass(slots=True)
class Fields:
    """One field of many messages. `present` is False where a message lacks it."""

    present: np.ndarray  # bool[n]
    value: np.ndarray  # uint64[n]: the number, its raw bits, or the start of the payload
    end: np.ndarray  # int64[n]: end of the payload (length-delimited fields only)


def _numbers(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return varints at the beginning of words: (uint64 value, int64 size; 0 = above 8 bytes)."""
    stop = ~words & _HIGH
    low = stop & (~stop + _ONE)
    value = words & (((low << _ONE) - _ONE) & _LOW)
    # `low` is a power of two, 2**(8k+7): its exponent is exact in a double.
    size = np.frexp(low.astype(np.float64))[1].astype(np.int64) // 8
    value = (value & np.uint64(0x007F007F007F007F)) | ((value & np.uint64(0x7F007F007F007F00)) >> _ONE)
    value = (value & np.uint64(0x00003FFF00003FFF)) | ((value & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    value = (value & np.uint64(0x000000000FFFFFFF)) | ((value & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    return value, size


def _long_numbers(buffer: Buffer, at: np.ndarray, value: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of `_numbers` with the varints filled in that it could not read.

    Those are of nine or ten bytes, as negative numbers are.

    Args:
        at: position of the last byte of each tag; the varint follows it.
        value, size: as `_numbers` returned them; a size of 0 = not read.
    """
    rows = np.flatnonzero(size == 0)
    word = buffer.words[at[rows] + 1]
    low = _numbers(word & ~(_ONE << np.uint64(63)))[0]  # as if the varint ended after eight bytes
    ninth = buffer.bytes[at[rows] + 9].astype(np.uint64)
    tenth = buffer.bytes[at[rows] + 10].astype(np.uint64)
    ten_bytes = low | ((ninth & np.uint64(127)) << np.uint64(56)) | (tenth << np.uint64(63))
    short = ninth < 128
    value, size = value.copy(), size.copy()
    value[rows] = np.where(short, low | (ninth << np.uint64(56)), ten_bytes)
    size[rows] = np.where(short, 9, np.where(tenth < 128, 10, 0))
    return value, size


def decode(
    buffer: Buffer,
    start: np.ndarray,
    end: np.ndarray,
    numbers: tuple[int, ...],
    repeated: int = 0,
    payloads: tuple[int, ...] = (),
) -> tuple[dict[int, Fields], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Decode many messages of one kind.

    Args:
        buffer: the bytes.
        start, end: int64[n], the position of each message.
        numbers: field numbers to return; the last occurrence in a message wins, as in protobuf.
        repeated: a length-delimited field of which every occurrence that is not empty is returned
            (0 = none).
        payloads: the length-delimited ones among the wanted; as in protobuf, a field of the
            other kind is unknown.

    Returns: the wanted fields by number, and (owner, start, end), int64[m], of the repeated one.

    Raises: BadMessage, TooMany.
    """
    n = len(start)
    table = {number: Fields(np.zeros(n, bool), np.zeros(n, np.uint64), np.zeros(n, np.int64)) for number in numbers}
    spans: list[tuple[np.ndarray, ...]] = [(start[:0],) * 3]  # owner, start, end
    position = start.astype(np.int64, copy=True)
    live = np.flatnonzero(position < end)
    for _ in range(MAX_ROUNDS):
        if not len(live):
            break
        stop = end[live]
        number, is_bytes, value, payload, after = _fields_at(buffer, position[live], stop)
        for wanted_number, column in table.items():
            chosen = (number == wanted_number) & (is_bytes == (wanted_number in payloads))
            if chosen.any():
                rows = live[chosen]
                column.present[rows] = True
                column.value[rows] = np.where(is_bytes[chosen], payload[chosen].astype(np.uint64), value[chosen])
                column.end[rows] = after[chosen]
        if repeated:
            chosen = (number == repeated) & is_bytes & (payload < after)  # empty ones are skipped
            spans.append((live[chosen], payload[chosen], after[chosen]))
        position[live] = after
        live = live[after < stop]
    if len(live):
        spans += _decode_slowly(buffer, live.tolist(), position, end, table, repeated, payloads)
    owner, first, last = map(np.concatenate, zip(*spans, strict=True))
    return table, (owner, first, last)


def _fields_at(
    buffer: Buffer, at: np.ndarray, stop: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read the fields at these positions, of messages that end at `stop`; int64[n] each.

    Returns: their numbers, which of them are length-delimited (bool[n]), the values of the others (uint64[n]; of
        numbers with a fraction the raw bits), where the payload begins and where the field ends.

    Raises: BadMessage.
    """
    tag = buffer.bytes[at].astype(np.int64)
    wire = tag & 7
    number = tag >> 3
    wide = tag >= 128  # a field number above 15
    if wide.any():
        following = buffer.bytes[at + 1].astype(np.int64)
        if (wide & (following >= 128)).any():
            raise BadMessage("unknown field")
        number = np.where(wide, (number & 15) | following << 4, number)
        at = at + wide
    value, size = _numbers(buffer.words[at + 1])
    if (size == 0).any():
        value, size = _long_numbers(buffer, at, value, size)
        if ((size == 0) & ((wire == VARINT) | (wire == BYTES))).any():
            raise BadMessage("a number runs past its message")
    if ((wire > 2) & (wire != 5)).any() or (number == 0).any():
        raise BadMessage("unknown wire type")
    payload = after = at + 1 + size
    is_bytes = wire == BYTES
    if is_bytes.any():  # the value is the payload's length
        length = value.astype(np.int64)
        if (is_bytes & ((length > stop - after) | (length < 0))).any():
            raise BadMessage("a field is longer than its message")
        after = np.where(is_bytes, after + length, after)
    fixed = (wire == FIXED64) | (wire == FIXED32)
    if fixed.any():  # four or eight bytes, which were read as a varint
        after = np.where(fixed, at + 1 + np.where(wire == FIXED64, 8, 4), after)
        raw = buffer.words[at + 1]
        raw = np.where(wire == FIXED32, raw & np.uint64(0xFFFFFFFF), raw)
        value = np.where(fixed, raw, value)
    if (after > stop).any():
        raise BadMessage("a field is longer than its message")
    return number, is_bytes, value, payload, after


def _decode_slowly(
    buffer: Buffer,
    rows: list[int],
    position: np.ndarray,
    end: np.ndarray,
    table: dict[int, Fields],
    repeated: int,
    payloads: tuple[int, ...],
) -> list[tuple[np.ndarray, ...]]:
    """Decode the rest of some messages into `table`, where `decode` stopped, one field at a time.

    Args:
        rows: of these messages.
        position: where the rest of each message begins; those of other rows are not used.

    Returns: [(owner, start, end)] of the repeated field; [] where it does not occur.

    Raises: BadMessage, TooMany.
    """
    occurrences: list[tuple[int, int, int]] = []
    fields_left = _FEW_FIELDS + MAX_ROUNDS * len(position)
    for row in rows:
        base, stop = int(position[row]), int(end[row])
        data = buffer.slice(base, stop)
        for number, wire, a, b in fields(data, 0, len(data)):
            fields_left -= 1
            if fields_left < 0:
                raise TooMany("messages of many thousand fields")
            # Positions are from the rest's beginning, `base`.
            if number == repeated and wire == BYTES and a < b:
                occurrences.append((row, base + a, base + b))
            column = table.get(number)
            if column is not None and (wire == BYTES) == (number in payloads):
                column.present[row] = True
                column.value[row] = base + a if wire == BYTES else a
                column.end[row] = base + b
    return [tuple(np.array(occurrences, np.int64).T)] if occurrences else []
