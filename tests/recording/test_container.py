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
    assert "y/z" in opened
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


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_cannot_be_inflated_piece_by_piece_is_refused(how):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        archive.writestr("index.json", "{}")
    with pytest.raises(Damaged, match="packed in another way"):
        Container(out.getvalue())


@pytest.mark.parametrize("member", [b"\x93NUMPY\x02\x00" + bytes(20), b"", b"\x93NUM"])
def test_a_member_that_is_no_array_is_refused(member):
    with pytest.raises(Damaged):
        Container(zipped(**{"x.npy": member})).array("x")


def test_pickles_are_never_opened(tmp_path):
    out = io.BytesIO()
    np.savez(out, x=np.array([{"a": 1}], dtype=object))
    data = zipped(**{"x.npy": zipfile.ZipFile(io.BytesIO(out.getvalue())).read("x.npy")})
    with pytest.raises(Damaged, match="not numbers"):
        Container(data).array("x")


@pytest.mark.parametrize("index", [b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_an_index_that_is_no_object_is_refused(index):
    with pytest.raises(Damaged):
        Container(zipped(**{"index.json": index}))


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


@pytest.mark.parametrize(
    "header",
    [
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
    ],
    ids=lambda header: header[-30:],
)
def test_a_header_that_numpy_would_not_write_is_damage(header):
    text = header.encode()
    body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    opened = Container(zipped(**{"x.npy": body}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Damaged):
            opened.array("x")


def test_two_members_of_one_name_are_damage():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for text in ("{}", "[]"):
                archive.writestr("index.json", text)
    with pytest.raises(Damaged, match="two members of one name"):
        Container(out.getvalue())
