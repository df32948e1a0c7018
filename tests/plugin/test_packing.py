"""What is packed comes out as it went in, and noise is not squeezed."""

import gzip
import itertools
import zlib

import numpy as np
import pytest

from tensorboard_plugin.tiles.server import SOME, gzipped

RANDOM = np.random.default_rng(3)
NOISE = RANDOM.integers(0, 256, 200_000).astype(np.uint8)
PARTS = {
    "nothing": b"", "few": b"abc", "zeros": bytes(100_000), "noise": NOISE.data,
    "short noise": NOISE[: SOME + 1].data, "one block": NOISE[: 0xFFFF].data,
    "two": NOISE[: 0x10000].data,
    "digits": RANDOM.integers(0, 9, 50_000).astype(np.uint8).data,
}  # fmt: skip


@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE])
@pytest.mark.parametrize("names", [(), *itertools.product(PARTS, repeat=2)], ids="+".join)
def test_what_is_packed_comes_out_as_it_went_in(names, strategy):
    # Twice: nothing that follows may refer to what was stored before it.
    parts = [PARTS[name] for name in (*names, *names)]
    whole = b"".join(bytes(part) for part in parts)
    packed = gzipped(parts, strategy)
    assert gzip.decompress(packed) == whole
    assert len(packed) <= len(whole) + 200


def test_what_shrinks_is_packed():
    assert len(gzipped([PARTS["zeros"]])) < 1_000
    assert len(gzipped([PARTS["digits"]])) < 25_000


@pytest.mark.parametrize("times", [2, 32, 64])
def test_what_repeats_neighbours_is_judged_by_all_of_it(times):
    """Sampled in step with its repeats, it would look like one value all along, or like noise."""
    part = np.repeat(NOISE[: 131_072 // times], times)
    packed = gzipped([part.data], zlib.Z_RLE)
    assert gzip.decompress(packed) == part.tobytes()
    assert len(packed) <= (1.0 if times == 2 else 0.2) * len(part) + 100


def test_noise_is_stored():
    assert NOISE[:70_000].tobytes()[:0xFFFF] in gzipped([PARTS["zeros"], NOISE[:70_000].data])
