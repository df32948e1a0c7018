"""Rules over a trace: they are those of recordings, and so are their limits."""

import json
import subprocess
import sys

import pytest
from trace_oracle import causes
from xspace_builder import FETCH, NEXT, Gpu, Kernel, On, Space, repeated

from gpu_util_callback import trace_handler
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import RULES, run_report
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.hostside import wording
from gpu_util_callback.traces.imported import analyse, import_trace
from gpu_util_callback.traces.output import trace_json

STEPS, STEP_US = 20, 1_000
OF_TRACES = [rule for rule in RULES if rule.unknown_in_trace]


def waiting(gpus: int = 1, kernel_us: float = 300) -> Space:
    """60 % of each step waits for a batch; the GPUs after the first compute a third as long."""
    work = [Kernel("gemm", 630, kernel_us)]
    for gpu in range(1, gpus):  # and spin in a collective until the first one is done
        work.append(Kernel("gemm", 630, kernel_us / 3, gpu))
        work.append(Kernel("ncclDevKernel_AllReduce", 630 + kernel_us / 3, kernel_us * 2 / 3, gpu))
    return repeated(STEPS, STEP_US, On(FETCH, NEXT, 10, 600, {"id": 0}), *work)


@pytest.fixture
def trace_file(tmp_path):
    return waiting().write(tmp_path / "host.xplane.pb")


def traced(capsys, *args) -> dict:
    assert main(["trace", "--json", *map(str, args)]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_rule_says_what_it_needs_and_why_its_limits_are_so():
    for rule in RULES:
        assert type(rule).__module__.endswith(f".rules.{rule.cause}"), "one file for each rule"
        assert rule.sources and rule.unknown and type(rule).__doc__
        assert rule.thresholds or rule.cause == "gpu_lost"  # the driver's word is no threshold
        for threshold in rule.thresholds.values():
            assert threshold.default >= 0 and len(threshold.reason) > 15


def test_the_limits_used_are_in_the_json(trace_file, capsys):
    result = traced(capsys, trace_file)
    assert result["thresholds"] == {
        rule.cause: {name: one.default for name, one in rule.thresholds.items()} for rule in OF_TRACES
    }
    assert causes(result) == ["input_bound"]
    finding = result["findings"][0]
    assert finding["threshold"] == {"wait_pct": 7.5} and finding["evidence"]["wait_pct"] > 55


def test_a_limit_set_changes_the_verdict_in_python_and_on_the_command_line(trace_file, capsys):
    result = traced(capsys, "--threshold", "input_bound.wait_pct=90", trace_file)
    assert result["findings"] == [] and result["thresholds"]["input_bound"]["wait_pct"] == 90
    trace = read_trace(trace_file)
    for given in ({"input_bound": {"wait_pct": 90}}, {"input_bound.wait_pct": 90}):
        analysis = analyse(trace, thresholds=given)
        assert analysis.findings == [] and analysis.thresholds == result["thresholds"]
    assert main(["trace", str(trace_file), "--threshold", "input_bound.wait_pct=90"]) == 0
    out = capsys.readouterr().out
    assert "Thresholds set: input_bound.wait_pct=90." in out and "Kernels ran only 30 %" in out


def test_the_rules_are_listed_with_reasons(capsys):
    assert main(["trace", "--rules"]) == 0
    out = capsys.readouterr().out
    assert "cpu_fallback" not in out, "no trace has its sources"
    for rule in OF_TRACES:
        assert f"{rule.cause}: " in out
        for name in rule.thresholds:
            assert f"{name}=" in out


def test_a_cause_that_cannot_be_judged_says_why(trace_file, tmp_path):
    silent = {one["cause"]: one["reason"] for one in analyse(read_trace(trace_file)).silent}
    assert silent == {"imbalance": "the trace has kernels of one GPU at most"}
    space = Space()
    space.host.line("python", 1).event("train", 0, 900, step_num=0, _r=1)
    (tmp_path / "cpu.xplane.pb").write_bytes(space.bytes())
    silent = {one["cause"] for one in analyse(read_trace(tmp_path / "cpu.xplane.pb")).silent}
    assert silent == {rule.cause for rule in OF_TRACES} - {"host_callback"}


def test_a_replica_that_waits_in_a_collective_is_not_at_work(tmp_path):
    path = waiting(gpus=2, kernel_us=380).write(tmp_path / "mirrored.xplane.pb")
    result = trace_json(analyse(read_trace(path)))
    (found,) = [f for f in result["findings"] if f["cause"] == "imbalance"]
    assert found["gpus"] == [1, 0], "the least busy one first"
    evidence = found["evidence"]
    assert (evidence["busiest"], evidence["least_busy"]) == ("gpu0", "gpu1")
    assert evidence["busiest_kernel_ms"] == pytest.approx(STEPS * 0.38)
    assert evidence["least_busy_kernel_ms"] < evidence["busiest_kernel_ms"] / 2
    # And a recording of it holds the same: evidence of a manifest is numbers and text.
    import_trace(path, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    stored = {one["cause"]: one for one in recording.stored["findings"]}
    assert stored["imbalance"]["evidence"] == evidence
    assert not [one for one in recording.problems if "evidence" in one.message]


def test_limits_set_for_an_import_are_in_force_in_its_recording(trace_file, tmp_path):
    import_trace(trace_file, tmp_path / "default")
    import_trace(trace_file, tmp_path / "set", thresholds={"input_bound.wait_pct": 90})
    found = {}
    for name in ("default", "set"):
        (recording,) = read_recordings(tmp_path / name)
        report = run_report(recording)
        found[name] = {finding["cause"] for finding in [*report["findings"], *report["spans"]]}
    assert found == {"default": {"input_bound"}, "set": set()}
    # And a reader's own limits hold for what the trace measured, too.
    (recording,) = read_recordings(tmp_path / "default")
    report = run_report(recording, {"input_bound": {"wait_pct": 90}})
    assert not report["findings"] and not report["spans"]


def test_a_recording_of_a_trace_advises_as_the_trace_does(tmp_path, reference):
    name = reference("xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb")
    (of_trace,) = analyse(read_trace(name)).findings
    import_trace(name, tmp_path / "logs")
    (recording,) = read_recordings(tmp_path / "logs")
    for report in (run_report(recording), run_report(recording, {"input_bound.wait_pct": 7})):
        (finding,) = [*report["findings"], *report["spans"]]
        assert finding["advice"] == of_trace["advice"] and "stage Map" in finding["advice"]["text"]
        assert finding["saves_s"] == 0 and finding["advice"]["question"]


def test_waits_in_a_part_of_a_long_trace_are_a_span_and_else_one_finding(tmp_path):
    path = tmp_path / "host.xplane.pb"
    for starved, spans in ((range(100, 200), 1), (range(300), 0)):
        space = Space()
        python = space.host.line("python", 1)
        fetch = space.host.line("tf_data_iterator_get_next/1", 3)
        gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
        for step in range(300):
            at = step * 20_000
            python.event("train", at, 19_990, step_num=step, _r=1)
            wait = 12_000 if step in starved else 100
            fetch.event("IteratorGetNextOp::DoCompute", at + 10, wait, id=step)
            gpu.launch("gemm", at + wait + 20, at + wait + 30, 19_900 - wait)
        path.write_bytes(space.bytes())
        (found,) = analyse(read_trace(path)).findings
        import_trace(path, tmp_path / str(spans))
        (recording,) = read_recordings(tmp_path / str(spans))
        report = run_report(recording)
        assert [one["cause"] for one in report["spans"]] == ["input_bound"] * spans
        assert len(report["findings"]) == 1 - spans
        assert found["cause"] == "input_bound" and found["confidence"] == "measured"
        assert found["lost_s"] == pytest.approx(0.012 * len(starved), rel=0.05)
        if spans:
            assert (found["start_step"], found["end_step"]) == (100, 200)


def test_a_wrong_limit_ends_no_training_but_is_told_before_it():
    with pytest.raises(UnusableInput, match="did you mean"):
        trace_handler("logs", thresholds={"input_bound.wait": 3})


def test_names_are_looked_at_once(trace_file, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("gpu_util_callback.traces.hostside.wording", lambda t: calls.append(t) or wording(t))
    import_trace(trace_file, tmp_path / "logs")
    assert len(calls) == 1


def test_reading_windows_imports_no_rules(trace_file, tmp_path):
    code = (
        "import sys; from gpu_util_callback.profiling.reading_process import main; main(*sys.argv[1:]);"
        "print(sum(m.startswith('gpu_util_callback.diagnosis') for m in sys.modules))"
    )
    command = [sys.executable, "-c", code, str(trace_file), str(tmp_path / "out.pickle")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120).stdout == "0\n"
