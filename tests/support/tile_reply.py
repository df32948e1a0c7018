"""Decodes the reply of `./tiles` as the contract describes it."""

import json
import struct
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
    count, at = header["count"], -(-(4 + length) // 8) * 8
    cells = 3 * count * len(header["series"])
    planes = np.frombuffer(body, np.uint8, 4 * cells, at).reshape(4, cells)
    parts = np.ascontiguousarray(planes.T).view("<f4").reshape(-1, 3, count)
    series = {
        (one["lane"], one["name"]): tuple(values)
        for one, values in zip(header["series"], parts, strict=True)
    }
    start, first = np.frombuffer(body[at + 4 * cells :], "<f8").reshape(2, count)
    return TileReply(header, series, start, first)
