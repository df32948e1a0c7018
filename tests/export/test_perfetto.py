"""`gpu-util export --perfetto`: a recording as a trace that viewers of Chrome's format draw."""

import itertools
import json
import sys
from collections import defaultdict
from importlib.util import find_spec

import numpy as np
import pytest
from generated_runs import InStep, write
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import run_report


def export(folder, tmp_path, *more) -> dict:
    out = tmp_path / "trace.json"
    assert main(["export", str(folder), "--perfetto", str(out), *more]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def check_format(trace: dict) -> None:
    """What the format's description asks of complete, counter and metadata events."""
    tracks = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "C", "M") and isinstance(event["name"], str)
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(one, float) for one in event["args"].values())
            continue
        assert event["dur"] >= 0
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for (pid, tid), slices in tracks.items():
        assert ("thread_name", pid, tid) in named and ("process_name", pid, 0) in named
        for (_, end), (start, _) in itertools.pairwise(sorted(slices)):
            assert end <= start + 1e-3, "slices of a track that overlap are dropped by viewers"


def slices(trace: dict, track: str) -> list[dict]:
    found = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == track]
    return sorted(found, key=lambda event: event["ts"])


@pytest.fixture
def recorded(tmp_path):
    make_recording(tmp_path / "run", "thirds", steps=600, gpus=2, windows=[(50, 55), (400, 405)])
    (recording,) = read_recordings(tmp_path / "run")
    return recording


def test_everything_of_a_recording_is_in_it(recorded, tmp_path):
    trace = export(tmp_path / "run", tmp_path)
    check_format(trace)
    origin = int(trace["otherData"]["origin_ns"])
    steps = slices(trace, "steps")
    assert [event["name"] for event in steps] == [f"step {k}" for k in recorded.steps["step"]]
    starts = np.array([event["ts"] for event in steps])
    assert starts == pytest.approx((recorded.steps["start_ns"] - origin) / 1e3, abs=0.01)
    waits = [event["args"]["input_wait_ms"] for event in steps]
    assert waits == pytest.approx(recorded.steps["input_wait_ns"] / 1e6)
    kinds = set(recorded.phases["kind"])
    tracks = {event["cat"].partition(":")[0] for event in trace["traceEvents"] if "cat" in event}
    assert kinds <= tracks
    spans = run_report(recorded)["spans"]
    (found,) = slices(trace, "finding: input_bound")
    (span,) = [one for one in spans if one["cause"] == "input_bound"]
    assert found["ts"] == pytest.approx((span["start_ns"] - origin) / 1e3, abs=0.01)
    assert found["dur"] == pytest.approx((span["end_ns"] - span["start_ns"]) / 1e3, abs=0.01)
    assert found["args"]["advice"] == span["advice"]["text"]


def test_counters_hold_the_samples(recorded, tmp_path):
    trace = export(tmp_path / "run", tmp_path)
    origin = int(trace["otherData"]["origin_ns"])
    name = "gpu0 utilization_pct"
    points = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == name]
    at = np.array([event["ts"] for event in points])
    value = np.array([event["args"]["value"] for event in points])
    samples = recorded.samples["gpu0"]
    times = (samples["time_ns"] - origin) / 1e3
    held = value[np.searchsorted(at, times + 0.01, "right") - 1]
    assert held == pytest.approx(samples["utilization_pct"])
    columns = {
        f"{group} {column}"
        for group, held in recorded.samples.items()
        for column, one in held.items()
        if column != "time_ns" and np.isfinite(one).any()
    }
    assert columns == {e["name"] for e in trace["traceEvents"] if e["ph"] == "C"}


def test_workers_are_shown_on_one_clock(tmp_path):
    for rank, offset in ((0, 0), (1, 35)):
        write(InStep(rank, offset), tmp_path / "run")
    trace = export(tmp_path / "run", tmp_path)
    check_format(trace)
    by_worker = defaultdict(dict)
    for event in slices(trace, "steps"):
        by_worker[event["pid"]][event["name"]] = event["ts"] + event["dur"]
    first, second = by_worker.values()
    apart = [abs(first[name] - second[name]) for name in first]
    assert len(apart) == 300 and np.median(apart) < 1000, "µs; the clocks are 35 ms apart"


def test_slices_at_the_same_time_get_tracks_of_their_own(tmp_path):
    from gpu_util_callback.report.tables import _Tracks

    made = list(
        _Tracks(1, lambda ns: ns).slices(
            "a", [(0, 100, "x", {}), (50, 150, "y", {}), (100, 200, "z", {}), (60, 70, "w", {})]
        )
    )
    check_format(
        {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "p"}}, *made]}
    )
    tids = {event["name"]: event["tid"] for event in made if event["ph"] == "X"}
    assert tids == {"x": 1, "y": 2, "w": 3, "z": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--perfetto FILE, --parquet DIR"),
        (["--perfetto", "no/such/folder/x.json"], "cannot write no/such/folder/x.json"),
        (["--perfetto", "-", "--run", "none"], "no run 'none'"),
        (["--parquet", "file"], "cannot write"),
        (["--parquet", "out"], "pip install pyarrow"),
        (["--perfetto", "-"], "no recording in"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words == "cannot write" and find_spec("pyarrow") is None:
        pytest.skip('pip install -e ".[parquet]"')
    (tmp_path / "file").write_text("")
    if words == "pip install pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    if words != "no recording in":
        make_recording(tmp_path / "logs", "healthy", steps=60, gpus=1)
    (tmp_path / "logs").mkdir(exist_ok=True)
    assert main(["export", "logs", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "out").exists()
