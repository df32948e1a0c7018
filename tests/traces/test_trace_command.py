"""`gpu-util trace`: what people and programs get."""

import io
import json
import sys

import pytest
from programs import ran
from xspace_builder import FETCH, NEXT, Gpu, Kernel, On, Space, repeated

from gpu_util_callback.cli import main

pytestmark = pytest.mark.heavy

BLOCK = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "jax", "torch", "pynvml", "xprof"}:
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Block())
"""
RUN = """
import sys
from gpu_util_callback.cli import main
sys.exit(main(["trace", sys.argv[1], "--json"]))
"""


@pytest.fixture
def trace_file(tmp_path):
    fetch, kernel = On(FETCH, NEXT, 10, 600, {"id": 0}), Kernel("ampere_sgemm_128x64_nn", 630, 300, op="model/d/MatMul")
    return repeated(20, 1_000, fetch, kernel).write(tmp_path / "host-a.xplane.pb")


def test_it_reads_without_any_framework(trace_file):
    done = ran(sys.executable, "-c", BLOCK + RUN, trace_file)
    assert len(json.loads(done.stdout)["steps"]) == 20


def test_terminal_view(trace_file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["trace", str(trace_file)]) == 0
    out = capsys.readouterr().out
    assert "20 steps (steps 100–119; from step markers)" in out
    assert "GPU 0" in out and "idle: input 12 ms (60 %)" in out
    assert "ampere_sgemm_128x64_nn  model/d/MatMul" in out
    assert "The GPU waits for input 60 % of the time" in out
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()[1:]) <= 140


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("args", [[], ["--rules"], ["--json"]])
def test_any_terminal_can_show_it(trace_file, encoding, args, monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["trace", str(trace_file), *args]) == 0
    shown.flush()
    text = shown.buffer.getvalue().decode(encoding)
    assert ("input_bound" if args else "Input-bound") in text
    if not args:
        assert ("100–119" in text) == (encoding == "utf-8")


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    space = Space(host="evil\x1b[2J")
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2), gpu_device_name="GPU\x07\x9b31m")
    for step in range(5):
        at = step * 10_000
        python.event("train", at, 9_900, step_num=step, _r=1)
        python.event("\x1b]0;owned\x07", at + 3_000, 6_800)
        gpu.launch("kernel\x1b[31m", at + 5, at + 10, 2_900, tf_op="a\rb/c:D")
    path = space.write(tmp_path / "host.xplane.pb")
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "owned" in out and "kernel?[31m" in out
    assert not [c for c in out if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"]


def test_view_with_colour_and_narrow(trace_file):
    from gpu_util_callback.report.trace_screen import render
    from gpu_util_callback.traces import read_trace
    from gpu_util_callback.traces.imported import analyse

    analysis = analyse(read_trace(trace_file))
    text = render(analysis, width=60, color=True)
    assert "\x1b[33m" in text
    bar = next(line for line in text.splitlines() if "█" in line)
    assert bar.count("█") == 60


def test_a_trace_of_nothing_is_no_recording_and_no_praise(tmp_path, capsys):
    space = Space()
    space.gpu(0)
    path = space.write(tmp_path / "host.xplane.pb")
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "nothing was recorded" in out and "No findings: what a GPU did" in out
    assert main(["trace", str(path), "--log-dir", str(tmp_path / "logs")]) == 2
    err = capsys.readouterr().err
    assert "no recording to write" in err and err.count("\n") == 1
    assert not (tmp_path / "logs").exists()
