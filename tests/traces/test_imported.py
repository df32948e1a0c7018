"""A trace written as a recording: the tab and the report show it as any other run."""

import gzip
import json
import shutil

import fsspec
import numpy as np
import pytest
from fork_server import python
from packages import need
from programs import ran
from test_kineto_layouts import event, kernel, launch
from xspace_builder import FETCH, NEXT, Kernel, On, repeated

from gpu_util_callback import trace_handler
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.traces.imported import import_trace


def launch_bound_trace() -> bytes:
    """Two steps of PyTorch with a hundred tiny kernels each."""
    events = []
    for step in (7, 8):
        at = step * 10_000
        events.append(event("user_annotation", f"ProfilerStep#{step}", at, 10_000))
        for k in range(100):
            number = 1000 * step + k
            events += [launch(at + 100 * k, 5, number), kernel("tiny", at + 100 * k + 8, 4, number)]
    properties = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85 << 30, "computeMajor": 9, "computeMinor": 0}]
    document = {"deviceProperties": properties, "baseTimeNanoseconds": 1_750_000_000_000_000_000, "traceEvents": events}
    return gzip.compress(json.dumps(document).encode())


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "worker.pt.trace.json.gz"
    path.write_bytes(launch_bound_trace())
    return path


def test_a_trace_without_steps_is_not_called_healthy(trace_data, tmp_path):
    import_trace(trace_data / "nsys" / "mock.sqlite", tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.stored["verdict"].startswith("No bottleneck found: too")
    report = run_report(recording)
    assert report["findings"] == []
    parts = report["gpu_time_est"]["0"]
    assert parts["idle"] > 0 and not any(name.startswith("idle_") for name in parts), "not judged"
    assert sum(value for name, value in parts.items() if name != "basis") == pytest.approx(report["wall_s"], rel=1e-3)


def test_judged_anew_the_traces_own_findings_stay(trace_file, tmp_path):
    import_trace(trace_file, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    anew = run_report(recording, {"input_bound": {"wait_pct": 20}})
    assert [finding["cause"] for finding in anew["findings"]] == ["launch_bound"]
    assert anew["thresholds"]["input_bound"]["wait_pct"] == 20


def test_the_recording_holds_what_the_trace_says(trace_file, tmp_path):
    (path,) = import_trace(trace_file, tmp_path / "logs" / "imported")
    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.path == path
    assert recording.run == "imported"
    assert recording.status == "ended"
    assert recording.problems == []
    assert recording.steps["step"].tolist() == [7, 8]
    start = 1_750_000_000_000_000_000 + 70_000_000
    assert recording.steps["start_ns"].tolist() == [start, start + 10_000_000]
    assert recording.steps["duration_ns"].tolist() == [10_000_000] * 2
    traced = recording.traced_steps
    total = sum(np.asarray(traced[f"{c}_ns"]) for c in CATEGORIES)
    assert total.tolist() == [10_000_000] * 2
    assert recording.kernels["name"].tolist() == ["tiny"]
    assert recording.kernels["count"].tolist() == [200]
    curve = recording.samples["gpu0/trace"]
    assert np.nanmean(curve["kernel_busy_pct"]) == pytest.approx(4, abs=0.3)


def test_facts_say_where_it_came_from_and_what_it_cannot_know(trace_file, tmp_path):
    import_trace(trace_file, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    source = recording.facts["source"]
    assert (source["tool"], source["format"]) == ("PyTorch profiler", "kineto")
    assert source["files"] == ["worker.pt.trace.json.gz"]
    assert "NVML" in {entry["source"] for entry in recording.facts["unavailable"]}
    (gpu,) = recording.facts["gpus"]
    assert (gpu["index"], gpu["name"], gpu["compute_capability"]) == (0, "NVIDIA H100", "9.0")
    assert recording.account["wall_s"] == pytest.approx(0.02)


def test_report_gives_the_verdict_of_the_trace(trace_file, tmp_path, capsys):
    logs = tmp_path / "logs"
    assert main(["trace", str(trace_file), "--log-dir", str(logs)]) == 0
    captured = capsys.readouterr()
    assert "Launch-bound" in captured.out
    assert str(logs) in captured.err
    assert main(["report", str(logs), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [f["cause"] for f in run["findings"]] == ["launch_bound"]
    assert run["findings"][0]["lost_s"] == pytest.approx(0.0192, abs=0.001)
    assert run["verdict"].startswith("The GPU waits 9")
    assert main(["report", str(logs)]) == 0


def test_tensorboard_finds_the_run(trace_file, tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    import_trace(trace_file, tmp_path)
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert "gpu_utilization" in events.summary_metadata["gpu_util/recording"].plugin_data.plugin_name


def test_every_process_is_a_recording_of_one_session(tmp_path):
    for host in ("worker-0", "worker-1"):
        repeated(3, 1_000, Kernel("gemm", 20, 500), host=host).write(tmp_path / f"{host}.xplane.pb")
    assert len(import_trace(tmp_path, tmp_path / "logs")) == 2
    recordings = list(read_recordings(tmp_path / "logs"))
    assert sorted(r.facts["host"] for r in recordings) == ["worker-0", "worker-1"]
    assert sorted(r.facts["rank"] for r in recordings) == [0, 1]
    assert len({r.session for r in recordings}) == 1


def test_a_host_only_trace_is_a_run_too(tmp_path):
    path = repeated(30, 1_000, On(FETCH, NEXT, 10, 700)).write(tmp_path / "h.xplane.pb")
    import_trace(path, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.steps["input_wait_ns"].tolist() == [700_000] * 30
    assert recording.traced_steps["gpu"].tolist() == [-1] * 30
    found = [*recording.stored["findings"], *recording.stored["spans"]]
    assert [thing["cause"] for thing in found] == ["input_bound"]


def test_unwritable_log_dir_is_one_line(trace_file, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["trace", str(trace_file), "--log-dir", str(blocked / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class FakeProfiler:
    """Like torch.profiler.profile in the one method that the handler uses."""

    def __init__(self, source):
        self.source = source

    def export_chrome_trace(self, path: str) -> None:
        if self.source is None:
            raise RuntimeError("CUPTI is busy")
        shutil.copy(self.source, path)


def test_handler_for_torch_profiler(trace_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    store = fsspec.filesystem("memory")
    for log_dir in ("memory://handler-test/logs", "~/logs"):
        handler = trace_handler(log_dir)
        handler(FakeProfiler(trace_file))
        handler(FakeProfiler(trace_file))  # every window is a recording
        assert len(list(read_recordings(log_dir))) == 2
    assert len(list((tmp_path / "home" / "logs").glob("*.pt.trace.json.gz"))) == 2
    assert len(store.glob("/handler-test/logs/*.pt.trace.json.gz")) == 2
    here = {path.name for path in tmp_path.iterdir()}
    assert here == {"home", trace_file.name}, "no folder is called memory: or ~"
    trace_handler(tmp_path / "other", keep_trace=False)(FakeProfiler(trace_file))
    assert not list((tmp_path / "other").glob("*.json.gz"))


def test_handler_never_raises(tmp_path, caplog):
    trace_handler(tmp_path / "logs")(FakeProfiler(None))
    assert "CUPTI is busy" in caplog.text
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    trace_handler(tmp_path / "logs")(FakeProfiler(broken))
    assert "not imported" in caplog.text


@pytest.mark.heavy
def test_handler_with_torch_itself(tmp_path):
    need("torch")
    code = """
import sys, torch
from gpu_util_callback import trace_handler
cpu = [torch.profiler.ProfilerActivity.CPU]
with torch.profiler.profile(activities=cpu, on_trace_ready=trace_handler(sys.argv[1])) as profiler:
    for _ in range(3):
        torch.ones(64, 64) @ torch.ones(64, 64)
        profiler.step()
"""
    ran(*python("torch"), "-c", code, tmp_path)
    (recording,) = read_recordings(tmp_path)
    assert len(recording.steps["step"]) >= 1
