"""Containers are plain `.npz` files, and nothing in one can take memory it has not been lent."""

import io
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from gpu_util_callback.recording import container
from gpu_util_callback.recording.container import Container, Damaged, pack


def test_numpy_opens_what_was_packed():
    data = pack({"a": 1}, {"x": np.arange(5), "y/z": np.zeros((2, 3), np.uint8)})
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        assert found["x"].tolist() == [0, 1, 2, 3, 4]
        assert found["y/z"].shape == (2, 3)
    opened = Container(data)
    assert opened.index == {"a": 1}
    assert opened.array("x").tolist() == [0, 1, 2, 3, 4]
    assert opened.array("y/z").shape == (2, 3)
    with pytest.raises(Damaged, match="missing"):
        opened.array("w")


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"index.json": b"{}", **members}.items():
            archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize("limit, sizes", [("MAX_MEMBER_BYTES", [2 << 20]), ("MAX_TOTAL_BYTES", [300_000] * 5)])
def test_a_zip_bomb_is_refused_before_it_inflates(monkeypatch, limit, sizes):
    monkeypatch.setattr(container, limit, 1 << 20)
    bomb = zipped(**{f"{number}.npy": bytes(size) for number, size in enumerate(sizes)})
    assert len(bomb) < 10_000
    with pytest.raises(Damaged, match="would inflate to"):
        Container(bomb)


def test_every_truncation_and_every_flipped_byte_is_damaged_or_harmless():
    array = np.arange(300, dtype=np.int64)
    data = pack({"rows": 300}, {"x": array})

    def read(spoiled):
        try:
            opened = Container(spoiled)
            return opened.index, opened.array("x")
        except Damaged:
            return None

    assert all(read(data[:length]) is None for length in range(len(data)))
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0x55
        found = read(bytes(spoiled))
        if found is not None:  # a field nobody relies on, a date for one
            assert found[0] == {"rows": 300}
            assert (found[1] == array).all(), at


def test_a_member_that_inflates_to_more_than_it_says_takes_no_memory():
    size = 67_000_001
    data = zipped(**{"y.npy": bytes(size)})
    data = data.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    opened = Container(data)
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            opened.array("y")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20, peak


def archive(*names_and_contents, how=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", how) as file:
        warnings.simplefilter("ignore")  # of two members of one name
        for name, content in names_and_contents:
            file.writestr(name, content)
    return out.getvalue()


def array(header: str) -> bytes:
    """A member with this header of numpy's."""
    text = header.encode()
    return zipped(**{"x.npy": b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)})


def pickled() -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.array([{"a": 1}], dtype=object))
    return zipped(**{"x.npy": zipfile.ZipFile(io.BytesIO(out.getvalue())).read("x.npy")})


HEADERS = [
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1L,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999999, 0), }",
    "{'descr': 'nonsense'}",
    "not even a dictionary",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, 1), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': " + "(" * 300,
    "{'descr': '<f1', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,), }",
    "'unterminated",
    "1 if 1 else\n 2",
    "\x00",
    "",
    "[" * 900,
]
REFUSED = {
    "bzip2": (archive(("index.json", "{}"), how=zipfile.ZIP_BZIP2), "packed in another way"),
    "lzma": (archive(("index.json", "{}"), how=zipfile.ZIP_LZMA), "packed in another way"),
    "two members of one name": (archive(("index.json", "{}"), ("index.json", "[]")), "two members of one name"),
    "a pickle": (pickled(), "not numbers"),
    **{
        f"array {one!r}": (zipped(**{"x.npy": one}), None)
        for one in (b"\x93NUMPY\x02\x00" + bytes(20), b"", b"\x93NUM")
    },
    **{
        f"index {one[:9]!r}": (zipped(**{"index.json": one}), None)
        for one in (b"[]", b"{", b"\xff\xfe", b"[" * 100_000)
    },
    **{f"header {one[-30:]}": (array(one), None) for one in HEADERS},  # numpy would not write them
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_would_not_write_is_damage(name):
    data, says = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Damaged, match=says):
            Container(data).array("x")
