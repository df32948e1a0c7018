"""Files that are no trace, or damaged: refused in one line that names them, or judged as the whole at most."""

import gzip
import json
import sqlite3
from random import Random

import numpy as np
import pytest
from test_kineto_layouts import event, kernel, launch
from test_nsys import Export
from trace_oracle import explain
from xspace_builder import repeated

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

NO_TRACES = {
    "odd.xplane.pb": [
        b"",
        b"hello, this is no trace at all, only text",
        b'{"traceEvents": []}',
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x00" * 100,
        b"\xff" * 100,
        gzip.compress(b"not an xspace", mtime=0),
        gzip.compress(b"x" * 1000, mtime=0)[:-20],
        b"\x12\x03abc",
    ],
    "odd.json": [
        b'{"traceEvents":[',
        b'{"traceEvents":[{"ph":"X","ts":1,"dur":2,"name":"a',
        b'{"traceEvents":[]}',
        b"{}",
        b"[]",
        b'{"traceEvents": 5}',
        b'{"traceEvents":[{"ph":"X"} {"ph":"X"}]}',
        b'{"other":[1,2,3]}',
        b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}',
        b"{" * 5000,
        b"[" * 200_000,
        b'{"traceEvents":[' + b'{"a":' * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
}


def refusal(path) -> str:
    """Why a file is not read: one line."""
    with pytest.raises(UnusableInput) as caught:
        explain(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, content) for name, contents in NO_TRACES.items() for content in contents],
    ids=lambda one: one if isinstance(one, str) else repr(one[:12]),
)
def test_what_is_no_trace_is_one_line(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    said = refusal(path)
    assert "rocprofv3" in said or b"rocprofiler" not in content


def sql(*commands: str):
    """Make a database of these commands."""

    def make(path, _):
        file = sqlite3.connect(path)
        for command in commands:
            file.execute(command)
        file.close()

    return make


def noise(path, whole: bytes) -> None:
    path.write_bytes(whole[:200] + np.random.default_rng(3).integers(0, 256, len(whole) - 200, np.uint8).tobytes())


DATABASES = {
    "cut": lambda path, whole: path.write_bytes(whole[: len(whole) // 2]),
    "noise": noise,
    "empty": sql("CREATE TABLE StringIds (id, value)"),
    "of something else": sql("CREATE TABLE people (name)"),
    "a query without end where a table belongs": sql(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE c(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM c) SELECT start, start AS end FROM c"
    ),
    "a definition that is no text": lambda path, whole: path.write_bytes(
        whole.replace(b"CREATE TABLE CUPTI", b"CREA\x87E TABLE CUPTI")
    ),
}


@pytest.mark.parametrize("damage", DATABASES)
def test_a_database_that_is_no_export_is_one_line(tmp_path, damage):
    export, path = Export(tmp_path / "whole.sqlite"), tmp_path / "odd.sqlite"
    for k in range(3000):
        export.kernel(k * 100, k * 100 + 50, k + 1)
    DATABASES[damage](path, export.write().read_bytes())
    said = refusal(path)
    assert ("garbled" in said and "export it again" in said) or damage != "a definition that is no text"


@pytest.mark.parametrize("kind", ["xplane.pb", "pt.trace.json"])
def test_a_packed_file_that_does_not_unpack_is_one_line(tmp_path, kind):
    whole = repeated(20, 10_000).bytes()
    if kind != "xplane.pb":
        events = [event("user_annotation", "ProfilerStep#1", 0, 10), launch(1, 1, 1)]
        whole = json.dumps({"traceEvents": events + [kernel(f"k{i}", i, 1, i) for i in range(500)]}).encode()
    packed, path, refused = gzip.compress(whole), tmp_path / f"damaged.{kind}.gz", 0
    for at in range(12, len(packed) - 8, 7):
        path.write_bytes(packed[:at])
        refusal(path)
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :])
        try:
            analyse(read_trace(path))
        except UnusableInput as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert refused
    path.write_bytes(packed)
    assert len(explain(path)["steps"]) == (20 if kind == "xplane.pb" else 1)


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


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    [
        "kineto/h100_bert_small.json.gz",
        "nsys/healthy_1pct.sqlite",
        "nsys/mock.sqlite",
        "xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb",
        "xplane/mi300x8_jax_conv_legacy.xplane.pb",
    ],
)
def test_a_damaged_copy_of_a_reference_is_refused_or_has_no_more_causes(reference, analysed, tmp_path, name):
    path = reference(name)
    causes = {finding["cause"] for finding in analysed(name).findings}
    whole, copy = path.read_bytes(), tmp_path / path.name
    if path.suffix == ".gz":
        whole, copy = gzip.decompress(whole), tmp_path / path.stem
    for seed in range(12):
        copy.write_bytes(damaged(Random(f"{name} {seed}"), whole))
        try:
            found = {finding["cause"] for finding in analyse(read_trace(copy)).findings}
        except UnusableInput as error:
            assert "\n" not in str(error) and path.stem.split(".")[0] in str(error)
        else:
            assert found <= causes, f"seed {seed}: damage must not look like a cause"
