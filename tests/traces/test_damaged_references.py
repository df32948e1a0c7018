"""Damaged copies of the reference traces: refused in one line, or judged as the whole at most."""

import gzip
from functools import cache
from random import Random

import pytest

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

pytestmark = pytest.mark.heavy

NAMES = (
    "kineto/h100_bert_small.json.gz",
    "nsys/healthy_1pct.sqlite",
    "nsys/mock.sqlite",
    "xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb",
    "xplane/mi300x8_jax_conv_legacy.xplane.pb",
)
COPIES = 12


@cache
def causes(path) -> frozenset[str]:
    return frozenset(finding["cause"] for finding in analyse(read_trace(path)).findings)


def damaged(random: Random, whole: bytes) -> bytes:
    """Cut off, bytes flipped, a stretch of zeros, or two stretches exchanged."""
    data = bytearray(whole)
    at, length = random.randrange(len(data)), random.randint(1, 3000)
    match random.randrange(4):
        case 0:
            del data[at:]
        case 1:
            for _ in range(random.choice([1, 5, 50])):
                data[random.randrange(len(data))] = random.randrange(256)
        case 2:
            data[at : at + length] = bytes(len(data[at : at + length]))
        case _:
            other = random.randrange(len(data))
            a, b = data[at : at + length], data[other : other + length]
            data[at : at + length], data[other : other + length] = b, a
    return bytes(data)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(COPIES))
def test_a_damaged_copy(reference, tmp_path, name, seed):
    path = reference(name)
    whole, copy = path.read_bytes(), tmp_path / path.name
    if path.suffix == ".gz":
        whole, copy = gzip.decompress(whole), tmp_path / path.stem
    copy.write_bytes(damaged(Random(f"{name} {seed}"), whole))
    try:
        found = {finding["cause"] for finding in analyse(read_trace(copy)).findings}
    except UnusableInput as error:
        assert "\n" not in str(error) and path.stem.split(".")[0] in str(error)
    else:
        assert found <= causes(path), "damage must not look like a cause"
