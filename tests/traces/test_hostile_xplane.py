"""Damaged, cut, made-up files: one clear line, and memory in proportion to the file."""

import gzip
import sys

import pytest
import trace_oracle
from programs import ran
from xspace_builder import Gpu, Space

from gpu_util_callback.errors import UnusableInput


def good() -> bytes:
    space = Space()
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(4):
        python.event("train", step * 1_000, 900, step_num=step, _r=1)
        gpu.launch("gemm", step * 1_000 + 5, step * 1_000 + 20, 500, tf_op="a/b:MatMul")
        gpu.copy("H2D", step * 1_000 + 600, step * 1_000 + 610, 50, size=4096)
    return space.bytes()


def explain(path) -> dict:
    """The JSON, or UnusableInput with a message of one line that names the file."""
    try:
        return trace_oracle.explain(path)
    except UnusableInput as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        raise


@pytest.mark.parametrize(
    "content",
    [
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
)
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "odd.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(UnusableInput):
        explain(path)


def test_packed_files_are_read(tmp_path):
    path = tmp_path / "x.xplane.pb.gz"
    path.write_bytes(gzip.compress(good()))
    assert len(explain(path)["steps"]) == 4


def test_impossible_times_are_left_out_and_told(tmp_path):
    space = Space()
    python = space.host.line("python", 1)
    python.event("train", 0, 900, step_num=1, _r=1)
    stream = space.gpu(0).line("Stream #1(Compute)", 1)
    stream.event("gemm", 10, 20)
    wild = stream.event("gemm", 40, 20)
    wild.offset_ps = 2**62
    wild.duration_ps = 2**62
    backwards = stream.event("gemm", 50, 20)
    backwards.duration_ps = -5
    path = space.write(tmp_path / "wild.xplane.pb")
    result = explain(path)
    assert result["devices"][0]["kernels"] == 1
    assert any("impossible times" in p for p in result["problems"])


def test_names_that_are_not_text_do_no_harm(tmp_path):
    space = Space(host="h")
    python = space.host.line("python", 1)
    python.event("train", 0, 900, step_num=b"\xff\xfe", _r=1)
    stream = space.gpu(0).line("Stream #1(Compute)", 1)
    event = stream.event("gemm", 10, 20, kernel_details="regs:x grid:1,2 block:-1,0,0 occ_pct:nan")
    event.metadata_id = 999_999  # no such name
    space.message.hostnames[0] = b"\xff\xff"
    path = space.write(tmp_path / "names.xplane.pb")
    assert explain(path)["kernels"][0]["name"] == "unknown"


def test_memory_stays_in_proportion_to_a_hostile_file(tmp_path):
    """Millions of two-byte events: the most that a byte can ask for."""
    line = b"\x22\x00" * 3_000_000
    size = len(line)
    header = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    plane_size = size + 1 + len(header) + 11
    plane = b"\x12\x09/host:CPU" + b"\x1a" + header + line
    assert len(plane) == plane_size
    header = bytes(
        [plane_size & 127 | 128, plane_size >> 7 & 127 | 128, plane_size >> 14 & 127 | 128, plane_size >> 21]
    )
    path = tmp_path / "many.xplane.pb"
    path.write_bytes(b"\x0a" + header + plane)
    code = (
        "import resource, sys\n"
        "from gpu_util_callback.traces import read_trace\n"
        "from gpu_util_callback.traces.imported import analyse\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "analyse(read_trace(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = ran(sys.executable, "-c", code, path, timeout=120)
    assert int(done.stdout) < 900_000  # kB, for three million events


def test_limits_are_told_in_one_line(tmp_path, monkeypatch):
    from gpu_util_callback.traces import xplane

    path = tmp_path / "large.xplane.pb"
    path.write_bytes(good())
    for limit in ("MAX_EVENTS", "MAX_LINES", "MAX_METADATA"):
        with monkeypatch.context() as patch:
            patch.setattr(xplane, limit, 1)
            with pytest.raises(UnusableInput, match="profile fewer steps"):
                explain(path)
