"""Options may stand before, after and between paths; wrong ones are one line and exit 2."""

import itertools
import json

import pytest
from xspace_builder import repeated

from gpu_util_callback.cli import main
from gpu_util_callback.traces.imported import import_trace


@pytest.mark.parametrize("command", ["report", "trace"])
def test_options_and_paths_may_stand_in_any_order(tmp_path, capsys, command):
    path = repeated(5, 1_000).write(tmp_path / "host.xplane.pb")
    words = [(str(path),), ("--json",), ("--threshold", "input_bound.wait_pct=7")]
    if command == "report":
        for name in ("A", "B"):
            import_trace(path, tmp_path / name)
        words = [(str(tmp_path / "A"),), (str(tmp_path / "B"),), ("--json",), ("--max-lost", "50")]
    for order in itertools.permutations(words):
        assert main([command, *itertools.chain(*order)]) == 0, order
        result = json.loads(capsys.readouterr().out)
        if command == "report":
            assert (len(result["runs"]), result["check"]["passed"]) == (2, True)
        else:
            assert len(result["steps"]) == 5 and result["thresholds"]["input_bound"]["wait_pct"] == 7


@pytest.mark.parametrize(
    "args, says",
    [
        (["report", "A", "--nonsense", "B"], "gpu-util report: unrecognized arguments: --nonsense"),
        (["total", "A", "--top", "x", "B"], "gpu-util total: argument --top: invalid int value"),
        (["report", "--min-utilization"], "argument --min-utilization: expected one argument"),
        (["report"], "gpu-util report: which log directory?"),
        (["trace", "--json"], "gpu-util trace: which trace?"),
        (["trace", "a", "--json", "b"], "gpu-util trace: a: no such file"),
        (["trace", "a", "--threshold", "input_bound.wait=5"], "has no threshold 'wait': did you mean wait_pct?"),
        (["trace", "a", "--check"], "gpu-util trace: unrecognized arguments: --check"),
        (["trace", "gs://bucket/host.xplane.pb"], "copy it here"),
        (["report", "memory://none/such"], "does not exist"),
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


def test_help_keeps_the_capitals_of_its_words(capsys):
    with pytest.raises(SystemExit):
        main(["total", "--help"])
    assert "Show where the GPU-hours of all runs" in " ".join(capsys.readouterr().out.split())
