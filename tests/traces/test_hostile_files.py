"""Made-up files that ask for too much: bounded cost, and one line or numbers that make sense.

The commands run in a process of its own with little memory and CPU time to spare: an answer that
comes at all came within them.
"""

import gzip
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from programs import ran
from test_kineto_layouts import event
from test_kineto_layouts import kernel as kineto_kernel
from trace_oracle import explain, sane

from gpu_util_callback.cli import main
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import limits, read_trace

pytestmark = pytest.mark.heavy

HOSTILE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "hostile"
FILES = sorted(HOSTILE.glob("[kxn][0-9]*"))
# Imports what the commands need once, and runs each list of commands in a fork with little to spare.
PROGRAM = """
import contextlib, io, json, os, resource, sys
from gpu_util_callback.cli import main, trace
from gpu_util_callback.diagnosis import rules
from gpu_util_callback.recording import event_files
from gpu_util_callback.report import trace_screen
from gpu_util_callback.traces import imported, kineto, nsys, output, xplane
SECONDS, MEMORY = 30, 3 << 29  # of addresses: Python and numpy take half a gigabyte of them

def run(commands):
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    ends = []
    for arguments in commands:
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()) as said:
            code = main(arguments)
        ends.append({"code": code, "said": said.getvalue(), "shown": shown.getvalue()})
    return ends

for commands in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        print(json.dumps(run(commands)), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("null", flush=True)
"""


def explained(*files: list[list[str]]) -> list[list[dict]]:
    """How each command of `gpu-util trace` about each file ended, within the limits."""
    environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    done = ran(sys.executable, "-W", "always", "-c", PROGRAM, json.dumps(files), env=environment)
    assert not done.stderr, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(said: str, code: int, shown: str) -> None:
    assert code in (0, 2), said[-2000:]
    lines = [line for line in said.splitlines() if not line.startswith("written: ")]
    assert len(lines) == (code == 2), said[-2000:]
    if code == 2:
        assert lines[0].startswith("gpu-util trace: ")
        assert len(lines[0]) < 600
        assert not shown


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> dict[Path, list[dict]]:
    """Of each file that once failed: as text, and as JSON with a recording."""
    logs = tmp_path_factory.mktemp("logs")
    ways = [
        [["trace", str(path)], ["trace", str(path), "--json", "--log-dir", str(logs / path.name)]] for path in FILES
    ]
    return dict(zip(FILES, explained(*ways), strict=True))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition("_")[0])
def test_a_file_that_once_failed(path, ends):
    assert ends[path], "it took too much time or memory"
    for end in ends[path]:
        judge(**end)
    as_json = ends[path][1]["shown"]
    if as_json:
        sane(json.loads(as_json))


def test_the_files_that_once_failed_are_here():
    if not FILES:
        pytest.skip("no ../shared/data/hostile beside this checkout")
    assert len(FILES) == 24


def kineto(tmp_path: Path, *events: dict, **members) -> dict:
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"traceEvents": events, **members}))
    return explain(path)


def kernel(start: float, length: float = 5, name: str = "gemm", device=0, **arguments) -> dict:
    return kineto_kernel(name, start, length, 1, device=device, **arguments)


def step(number: int, start: float, length: float = 100) -> dict:
    return event("user_annotation", f"ProfilerStep#{number}", start, length)


def test_impossible_numbers_are_absent_and_events_without_a_gpu_are_counted(tmp_path):
    occupancy = "est. achieved occupancy %"
    result = kineto(
        tmp_path,
        kernel(0, **{occupancy: 50, "shared memory": 1 << 40}),
        *(kernel(10 + i, **{occupancy: 5000}) for i in range(3)),
        kernel(30, device=-5),
        kernel(40, device=10**12),
        *(kernel(50 + i, **{"registers per thread": 10**30}) for i in range(2)),
        deviceProperties=[{"id": 0, "numSms": -3, "computeMajor": 10**9, "computeMinor": 0}],
    )
    assert "2 events with impossible device numbers were left out" in result["problems"]
    (device,) = result["devices"]
    assert device["kernels"] == 6 and not {"sm_count", "compute_capability"} & device.keys()
    (gemm,) = result["kernels"]
    assert gemm["occupancy_pct"] == 50
    assert gemm["registers"] is None


def test_a_step_number_that_cannot_be_is_none(tmp_path):
    result = kineto(tmp_path, step(10**17, 0), step(10**17 + 1, 100), kernel(20))
    assert [row["step"] for row in result["steps"]] == [0, 1]


def test_events_longer_than_sums_can_hold_are_refused(tmp_path):
    days = 20 * 86400e6  # each possible by itself; together more than 64 bits of picoseconds
    events = [kernel(i, days, name="long") for i in range(20)]
    with pytest.raises(UnusableInput, match="longer than 50 days together"):
        kineto(tmp_path, *events, step(1, 0, days))


def test_copies_add_up_exactly_however_large(tmp_path):
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "dur": 1}
    size = (1 << 50) - 1
    args = {"device": 0, "stream": 7, "bytes": size}
    result = kineto(tmp_path, *(copy | {"ts": 2 * i, "args": args} for i in range(20_000)))
    assert result["copies"][0]["bytes"] == 20_000 * size


def test_gpus_times_steps_are_no_more_than_a_file_accounts_for(tmp_path):
    gpus, steps = 400, 1000
    result = kineto(
        tmp_path, *(step(i, 100 * i) for i in range(steps)), *(kernel(50, 1 + i / 1000, device=i) for i in range(gpus))
    )
    rows = sum(len(row["gpus"]) for row in result["steps"])
    assert len(result["steps"]) == steps
    assert rows <= limits.FEW_CELLS + limits.CELLS_PER_EVENT * (gpus + steps)
    shown = {device["index"] for device in result["devices"]}
    assert min(shown) == gpus - len(shown)  # those with most work
    assert any(f"only the {len(shown)} busiest" in p for p in result["problems"])


def test_very_many_kernel_names_are_one_row_from_some_on(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_KERNEL_NAMES", 5)
    result = kineto(tmp_path, *(kernel(10 * i, 1 + i / 10, name=f"k{i}") for i in range(9)))
    rows = result["kernels"]
    assert [k["name"] for k in rows] == ["k8", "k7", "k6", "k5", "k4", "4 other kernels"]
    assert sum(k["count"] for k in rows) == result["devices"][0]["kernels"] == 9
    assert sum(k["share_pct"] for k in rows) == pytest.approx(100)


def test_half_a_character_in_a_name_can_be_written(tmp_path):
    path = tmp_path / "half.json"
    path.write_text('{"traceEvents":[' + json.dumps(kernel(1, name="gemm\ud800")) + "]}")
    assert main(["trace", str(path), "--log-dir", str(tmp_path / "logs")]) == 0


def nested(tag: int, message: bytes) -> bytes:
    """A message inside another one, as protobuf writes it."""
    size, left = b"", len(message)
    while left > 127:
        size, left = size + bytes([left & 127 | 128]), left >> 7
    return bytes([tag]) + size + bytes([left]) + message


def test_what_is_without_end_costs_no_more_than_its_length(tmp_path):
    """Names, and a query: rows that do not stand in the file, but in a generated column that computes them."""
    gpu = {"ph": "M", "pid": 5, "name": "process_name", "args": {"name": "/device:GPU:0"}}
    paths = []
    for number, repeats in enumerate(("bmm_", "sdpa", "igemm_", "a", "cutlass", "regs:1", "(a")):
        name = repeats * (1_000_000 // len(repeats))
        details = {"kernel_details": name, "memcpy_details": name}
        plain = {"ph": "X", "pid": 5, "tid": 1, "ts": 3, "dur": 1, "name": "Memcpy", "args": details}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({"traceEvents": [kernel(1, name=name), gpu, plain]}))
    paths.append(tmp_path / "many.xplane.pb")  # events of two bytes: the most that a byte can ask for
    paths[-1].write_bytes(nested(0x0A, b"\x12\x09/host:CPU" + nested(0x1A, b"\x22\x00" * 3_000_000)))
    paths.append(tmp_path / "made.sqlite")
    with sqlite3.connect(paths[-1]) as file:
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, "
            "deviceId INTEGER AS (length(replace(hex(zeroblob(20000000)), '0', 'aaaa'))) STORED)"
        )
    file.close()
    for path, ended in zip(paths, explained(*([["trace", str(path)]] for path in paths)), strict=True):
        assert ended, f"{path} took too much time or memory"
        judge(**ended[0])


def test_a_packed_file_may_unfold_only_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ANY_RATIO_BELOW", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    text = json.dumps({"traceEvents": [kernel(1)]}).encode()
    path.write_bytes(gzip.compress(b"{" + b" " * (8 << 20) + text[1:]))
    with pytest.raises(UnusableInput, match="decompresses to more than 1 MB"):
        read_trace(path)
    path.write_bytes(gzip.compress(b"{" + b" " * (1 << 19) + text[1:]))
    assert len(read_trace(path).processes[0].devices) == 1


def test_json_is_printed_whole_and_without_what_json_lacks(tmp_path, monkeypatch, capsys):
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"traceEvents": [kernel(1)]}))
    odd = {"a": [1, float("inf")], "b": float("nan"), "c": {"d": 2.5}}
    monkeypatch.setattr("gpu_util_callback.cli.trace.trace_json", lambda analysis: odd)
    assert main(["trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "b": None, "c": {"d": 2.5}}


def test_a_page_that_is_named_again_and_again_holds_its_rows_once(tmp_path):
    path, size, times = tmp_path / "made.sqlite", 512, 60
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    with sqlite3.connect(path, isolation_level=None) as file:
        file.execute(f"PRAGMA page_size = {size}")
        file.execute(f"CREATE TABLE {table} (start, end)")
        file.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(i, i + 3) for i in range(80)])
        (root,) = file.execute("SELECT rootpage FROM sqlite_master").fetchone()
    file.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * size
    assert data[at] == 5  # an inner page of a table; its cells name a child and a key
    child, first = data[at + 8 : at + 12], size - 5 * times
    for number in range(times):
        cell = first + 5 * number
        data[at + cell : at + cell + 5] = child + b"\x01"
        data[at + 12 + 2 * number : at + 14 + 2 * number] = cell.to_bytes(2)
    data[at + 3 : at + 7] = times.to_bytes(2) + first.to_bytes(2)
    path.write_bytes(data)
    with pytest.raises(UnusableInput, match="more rows than they can"):
        read_trace(path)
