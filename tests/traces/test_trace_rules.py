"""Rules over a trace: limits can be set, are told, and are those of recordings where alike."""

import json
import subprocess
import sys

import pytest
from xspace_builder import Gpu, Space

from gpu_util_callback import trace_handler
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import RULES as OF_RUNS
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.traces import analyse, read_trace
from gpu_util_callback.traces.frameworks import wording
from gpu_util_callback.traces.imported import import_trace
from gpu_util_callback.traces.rules import RULES

STEPS, STEP_US = 20, 1_000


def waiting(gpus: int = 1, kernel_us: float = 300) -> Space:
    """60 % of each step waits for a batch; the GPUs after the first compute a third as long."""
    space = Space()
    python = space.host.line("python", 1)
    fetch = space.host.line("tf_data_iterator_get_next/1", 3)
    devices = [Gpu(space, i, space.host.line(f"tf_Compute/{i}", 10 + i)) for i in range(gpus)]
    for step in range(STEPS):
        at = step * STEP_US
        python.event("train", at, STEP_US - 10, step_num=step, _r=1)
        fetch.event("IteratorGetNextOp::DoCompute", at + 10, 600, id=step)
        for gpu in devices:
            busy = kernel_us if gpu.index == 0 else kernel_us / 3
            gpu.launch("gemm", at + 620, at + 630, busy)
            if gpu.index:  # and spins in a collective until the first one is done
                gpu.launch("ncclDevKernel_AllReduce", at + 625, at + 630 + busy, kernel_us - busy)
    return space


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(waiting().bytes())
    return path


def causes(result: dict) -> list[str]:
    return [finding["cause"] for finding in result["findings"]]


def traced(capsys, *args) -> dict:
    assert main(["trace", "--json", *map(str, args)]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_rule_says_what_it_needs_and_why_its_limits_are_so():
    for rule in RULES:
        assert type(rule).__module__.endswith(f".{rule.cause}"), "one file for each rule"
        assert rule.sources and rule.unknown and rule.thresholds and type(rule).__doc__
        for threshold in rule.thresholds.values():
            assert threshold.default >= 0 and len(threshold.reason) > 15


def test_causes_and_limits_that_a_recording_has_too_are_the_same():
    of_runs = {rule.cause: rule for rule in OF_RUNS}
    shared = 0
    for rule in RULES:
        assert rule.cause in of_runs
        for name, threshold in rule.thresholds.items():
            twin = of_runs[rule.cause].thresholds.get(name)
            shared += twin is threshold
            if twin is not None and twin is not threshold:
                assert (rule.cause, name) == ("input_bound", "wait_pct"), "one of its own, told why"
    assert shared >= 6


def test_the_limits_used_are_in_the_json(trace_file, capsys):
    result = traced(capsys, trace_file)
    assert set(result["thresholds"]) == {rule.cause for rule in RULES}
    assert result["thresholds"]["input_bound"] == {"wait_pct": 5}
    assert causes(result) == ["input_bound"]
    finding = result["findings"][0]
    assert finding["threshold"] == {"wait_pct": 5} and finding["evidence"]["wait_pct"] > 55


def test_a_limit_set_changes_the_verdict_in_python_and_on_the_command_line(trace_file, capsys):
    result = traced(capsys, "--threshold", "input_bound.wait_pct=90", trace_file)
    assert result["findings"] == [] and result["thresholds"]["input_bound"]["wait_pct"] == 90
    trace = read_trace(trace_file)
    for given in ({"input_bound": {"wait_pct": 90}}, {"input_bound.wait_pct": 90}):
        analysis = analyse(trace, thresholds=given)
        assert analysis.findings == [] and analysis.thresholds == result["thresholds"]
    assert main(["trace", str(trace_file), "--threshold", "input_bound.wait_pct=90"]) == 0
    out = capsys.readouterr().out
    assert "Thresholds set: input_bound.wait_pct=90." in out and "Nothing found" in out


@pytest.mark.parametrize("given, says", [
    ("input_bound=5", "--threshold 'input_bound=5': write CAUSE.NAME=VALUE"),
    ("input_bound.wait=5", "input_bound has no threshold 'wait': did you mean wait_pct?"),
    ("input_bund.wait_pct=5", "no cause 'input_bund' to set: did you mean input_bound?"),
    ("input_bound.wait_pct=much", "threshold input_bound.wait_pct: 'much' is not a number"),
])  # fmt: skip
def test_a_wrong_limit_is_one_line_the_same_as_for_a_report(trace_file, capsys, given, says):
    assert main(["trace", str(trace_file), "--threshold", given]) == 2
    of_trace = capsys.readouterr().err
    assert says in of_trace and of_trace.count("\n") == 1
    import_trace(trace_file, trace_file.parent / "logs")
    assert main(["report", str(trace_file.parent / "logs"), "--threshold", given]) == 2
    of_report = capsys.readouterr().err
    assert says.partition(":")[0] in of_report and of_report.count("\n") == 1


def test_the_rules_are_listed_with_reasons(capsys):
    assert main(["trace", "--rules"]) == 0
    out = capsys.readouterr().out
    for rule in RULES:
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
    assert silent == {rule.cause for rule in RULES}


def test_a_replica_that_waits_in_a_collective_is_not_at_work(tmp_path):
    path = tmp_path / "mirrored.xplane.pb"
    path.write_bytes(waiting(gpus=2, kernel_us=380).bytes())
    result = analyse(read_trace(path)).to_json()
    (found,) = [f for f in result["findings"] if f["cause"] == "imbalance"]
    assert found["gpus"] == [1, 0], "the least busy one first"
    kernel_ms = found["evidence"]["kernel_ms"]
    assert kernel_ms["0"] == pytest.approx(STEPS * 0.38) and kernel_ms["1"] < kernel_ms["0"] / 2


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
    for report in (run_report(recording), run_report(recording, {"input_bound.floor_ms": 0.3})):
        (finding,) = [*report["findings"], *report["spans"]]
        assert finding["advice"] == of_trace["advice"] and "stage Map" in finding["advice"]["text"]
        assert finding["saves_s"] == finding["lost_s"]


def test_a_wrong_limit_ends_no_training_but_is_told_before_it():
    with pytest.raises(UnusableInput, match="did you mean"):
        trace_handler("logs", thresholds={"input_bound.wait": 3})


def test_names_are_looked_at_once(trace_file, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "gpu_util_callback.traces.frameworks.wording", lambda t: calls.append(t) or wording(t)
    )
    import_trace(trace_file, tmp_path / "logs")
    assert len(calls) == 1


def test_reading_windows_imports_no_rules(trace_file, tmp_path):
    job = json.dumps({"path": str(trace_file), "out": str(tmp_path / "out.npz")})
    code = (
        "import sys; from gpu_util_callback.profiling.reading_process import main; main();"
        "print(sum(m.startswith('gpu_util_callback.diagnosis') for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=job + "\n", capture_output=True, text=True, timeout=120
    )
    answer, imported = done.stdout.splitlines()
    assert json.loads(answer)["error"] is None and imported == "0"
