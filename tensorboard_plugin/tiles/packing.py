"""Gzip for tiles: what hardly shrinks is stored, because squeezing it takes most of the time."""

import zlib
from collections.abc import Sequence

import numpy as np

__all__ = ["gzipped"]

# Parts that would keep more than this share of their size are stored as they are. Packing takes the
# longer the less it gains: of a dense tile the upper half of its bytes is packed in a tenth of the
# time that the lower half, which is noise, would take for half of its size.
WORTH = 0.5
# A part is judged by so many of its bytes.
SOME = 4096
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\4\xff"
_MOST_STORED = 0xFFFF


def gzipped(parts: Sequence[bytes | memoryview], strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """The parts one after the other as one gzip member.

    Args:
        parts: bytes, one after the other in memory.
        strategy: zlib's, for what is not stored.
    """
    out: list[bytes | memoryview] = [_HEADER]
    check = size = 0
    packer = None
    for part in parts:
        check, size = zlib.crc32(part, check), size + len(part)
        if _share_left(np.frombuffer(part, np.uint8)) > WORTH:
            if packer is not None:  # what follows begins on a whole byte, and refers to nothing
                out.append(packer.flush(zlib.Z_FULL_FLUSH))
                packer = None
            out += _stored(part)
            continue
        if packer is None:
            packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, strategy)
        out.append(packer.compress(part))
    if packer is None:
        packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    out.append(packer.flush())
    out.append(check.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little"))
    return b"".join(out)


def _stored(part: bytes | memoryview) -> list[bytes | memoryview]:
    """Deflate's blocks that hold bytes as they are."""
    blocks: list[bytes | memoryview] = []
    for begin in range(0, len(part), _MOST_STORED):
        piece = part[begin : begin + _MOST_STORED]
        length = len(piece)
        blocks.append(
            b"\0" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
        )
        blocks.append(piece)
    return blocks


def _share_left(octets: np.ndarray) -> float:
    """About which share of them is left after packing: repeats cost nothing, others their bits."""
    if len(octets) < SOME:
        return 0.0
    # An odd stride: what repeats does so by powers of two.
    at = np.arange(1, len(octets), len(octets) // SOME | 1)
    some = octets[at]
    new = some[some != octets[at - 1]]
    counts = np.bincount(new, minlength=256)
    counts = counts[counts > 0]
    bits = -(counts * np.log2(counts / len(new))).sum() if len(new) else 0.0
    return float(bits) / (8 * len(some))
