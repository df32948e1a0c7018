"""The whole path of the evidence, on the CPU over the stand-in, as it is typed."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from fork_server import python

pytest.importorskip("keras")
pytest.importorskip("tensorflow")

PROGRAM = Path(__file__).resolve().parents[2] / "demo" / "gpu_evidence.py"
ARGUMENTS = ("--backend", "tensorflow", "--stand-in", "--seconds", "3")
# Runs the program of the second argument, which starts its children with the first, as `python -P`.
START = "import runpy, sys; _, sys.executable, *sys.argv = sys.argv; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture
def evidence(tmp_path):
    forked = tmp_path / "python"
    forked.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(python("keras"))} "$@"\n')
    forked.chmod(0o700)
    return partial(run, forked)


def run(interpreter, *arguments, timeout=150, **environ):
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler to build the stand-in libnvidia-ml.so.1 with")
    return subprocess.run(
        [sys.executable, "-c", START, str(interpreter), str(PROGRAM), *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.real_clock("a verdict on what a real training spends")
def test_a_healthy_and_a_faulty_training(evidence, tmp_path):
    done = evidence(
        *ARGUMENTS,
        "--out",
        str(tmp_path / "out"),
        "--record",
        str(tmp_path / "kept"),
        "--only",
        "healthy",
        "--only",
        "float32",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stand-in: not measured on a GPU") == 2
    assert "2 of 2 verdicts are right" in done.stdout
    results = json.loads((tmp_path / "out" / "results-tensorflow.json").read_text())
    assert results["stand_in"] is True
    healthy, plain = results["results"]
    assert (healthy["causes"], plain["causes"]) == ([], ["no_tensor_cores"])
    assert healthy["windows"] == plain["windows"] == 2
    assert healthy["nvml_pct"] == pytest.approx(98, abs=1)
    assert healthy["sm_active_pct"] == pytest.approx(88, abs=1)
    assert healthy["kernel_busy_pct"] == healthy["any_busy_pct"] == pytest.approx(97, abs=3)
    # What was kept: small, redacted, labelled, and readable again.
    from evidence.findings import read

    for name, found in (("healthy", healthy), ("float32", plain)):
        kept = tmp_path / "kept" / name
        assert sum(f.stat().st_size for f in kept.rglob("*") if f.is_file()) < 500_000
        truth = json.loads((kept / "truth.json").read_text())
        assert truth["stand_in"] is True and truth["causes"] == found["causes"]
        again = read(str(kept))
        assert again["causes"] == found["causes"] and again["windows"] == 2
        assert list(kept.glob("plugins/profile/*/host-*.xplane.pb"))
        assert not any(os.uname().nodename in f.name for f in kept.rglob("*"))


def test_without_a_gpu_it_says_so_and_fails(evidence, tmp_path):
    done = evidence(
        "--backend",
        "tensorflow",
        "--seconds",
        "3",
        "--out",
        str(tmp_path),
        "--only",
        "healthy",
        CUDA_VISIBLE_DEVICES="-1",
    )
    assert done.returncode == 1
    assert "tensorflow sees no GPU here" in done.stdout
    assert "0 of 1 verdicts are right; wrong: healthy" in done.stdout
