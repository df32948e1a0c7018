"""Decodes the reply of `./tiles` as the contract describes it."""

import gzip
import json
import struct
import time
from dataclasses import dataclass

import numpy as np


@dataclass
class TileReply:
    header: dict
    series: dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]
    start_ns: np.ndarray
    first_step: np.ndarray


def decode_tile(body: bytes) -> TileReply:
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    count, first, at = header["count"], header["first"], -(-(4 + length) // 8) * 8
    sizes = [_wide(first, count, one.get("bits", 0))[1] for one in header["series"]]
    cells = sum(size * (1 if one.get("alike") else 3) for one, size in zip(header["series"], sizes, strict=True))
    planes = np.frombuffer(body, np.uint8, 4 * cells, at).reshape(4, cells)
    values, series = np.ascontiguousarray(planes.T).view("<f4").ravel(), {}
    for one, size in zip(header["series"], sizes, strict=True):
        parts, bits = [], one.get("bits", 0)
        for _ in range(1 if one.get("alike") else 3):
            part, values = values[:size], values[size:]
            if bits:
                part = part[((np.arange(count) + first) >> bits) - (first >> bits)]
                part[header["filled"] :] = np.nan
            parts.append(part)
        series[one["lane"], one["name"]] = tuple(parts if len(parts) == 3 else 3 * parts)
    start, first_step = np.frombuffer(body[at + 4 * cells :], "<f8").reshape(2, count)
    return TileReply(header, series, start, first_step)


def settled_tile(server, recording, *request) -> TileReply:
    """The reply once everything has been read and nothing is being refined, as the tab gets it."""
    end = time.monotonic() + 60
    while True:
        reply = decode_tile(gzip.decompress(server.tile(recording, *request)))
        if not reply.header["refining"]:
            return reply
        assert time.monotonic() < end, reply.header
        time.sleep(0.02)


def _wide(first: int, count: int, bits: int) -> tuple[int, int]:
    """(first, count) of the buckets so many bits wider around those asked for."""
    return first >> bits, ((first + count - 1) >> bits) - (first >> bits) + 1


def reduced(keys: np.ndarray, values: np.ndarray, level: int, first: int, count: int) -> np.ndarray:
    """The truth: min, max and mean of the known `values` in buckets of 2^level keys."""
    numbers = (keys >> level) - first
    inside = (numbers >= 0) & (numbers < count) & ~np.isnan(values)
    numbers, values = numbers[inside], values[inside]
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, numbers, values)
    np.maximum.at(high, numbers, values)
    rows = np.bincount(numbers, minlength=count)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(numbers, values, count) / rows
    return np.where(rows > 0, [low, high, mean], np.nan)
