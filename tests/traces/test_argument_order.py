"""Options may stand before, after and between paths; wrong ones are one line and exit 2."""

import itertools
import json

import pytest
from xspace_builder import Space

from gpu_util_callback.cli import main
from gpu_util_callback.traces.imported import import_trace


@pytest.fixture
def trace_file(tmp_path):
    space = Space()
    python = space.host.line("python", 1)
    for step in range(5):
        python.event("train", step * 1000, 990, step_num=step, _r=1)
    return space.write(tmp_path / "host.xplane.pb")


def test_a_report_takes_options_and_paths_in_any_order(trace_file, tmp_path, capsys):
    for name in ("A", "B"):
        import_trace(trace_file, tmp_path / name)
    seen = set()
    words = [(str(tmp_path / "A"),), (str(tmp_path / "B"),), ("--json",), ("--max-lost", "50")]
    for order in itertools.permutations(words):
        assert main(["report", *itertools.chain(*order)]) == 0, order
        report = json.loads(capsys.readouterr().out)
        seen.add((len(report["runs"]), report["check"]["passed"]))
    assert seen == {(2, True)}


def test_a_trace_too(trace_file, capsys):
    options = [("--json",), ("--threshold", "input_bound.wait_pct=7")]
    for order in itertools.permutations([(str(trace_file),), *options]):
        assert main(["trace", *itertools.chain(*order)]) == 0
        result = json.loads(capsys.readouterr().out)
        assert len(result["steps"]) == 5 and result["thresholds"]["input_bound"]["wait_pct"] == 7


@pytest.mark.parametrize(
    "args, says",
    [
        (["report", "A", "--nonsense", "B"], "gpu-util report: unrecognized arguments: --nonsense"),
        (["report", "A", "--width", "x", "B"], "gpu-util report: argument --width: invalid int value"),
        (["report", "--min-utilization"], "argument --min-utilization: expected one argument"),
        (["report"], "gpu-util report: which log directory?"),
        (["trace", "--json"], "gpu-util trace: which trace?"),
        (["trace", "a", "--json", "b"], "gpu-util trace: a: no such file"),
        (["trace", "a", "--check"], "gpu-util trace: unrecognized arguments: --check"),
        (["doctor", "here", "--json"], "gpu-util doctor: unrecognized arguments: here"),
        (["doctor", "--timeout", "soon"], "gpu-util doctor: argument --timeout: invalid float value"),
        (["--json", "report", "A"], "gpu-util: unrecognized arguments: --json"),
        (["nonsense"], "gpu-util: argument COMMAND: invalid choice: 'nonsense'"),
        ([], "gpu-util: the following arguments are required: COMMAND"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(capsys, args, says):
    try:
        code = main(args)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert code == 2 and not out
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize("command", ["report", "trace", "doctor"])
def test_help_names_what_there_is(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"gpu-util {command}" in out and "--json" in out
    assert ("--threshold CAUSE.NAME=VALUE" in out) == (command != "doctor")


def test_help_keeps_the_capitals_of_its_words(capsys):
    with pytest.raises(SystemExit):
        main(["total", "--help"])
    assert "Show where the GPU-hours of all runs" in " ".join(capsys.readouterr().out.split())
