"""The whole path of the evidence, on the CPU over the stand-in, as it is typed."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from fork_server import python
from programs import ran

pytest.importorskip("keras")
pytest.importorskip("tensorflow")

PROGRAM = Path(__file__).resolve().parents[2] / "demo" / "gpu_evidence.py"
ARGUMENTS = ("--backend", "tensorflow", "--stand-in", "--seconds", "2")
# Runs the program of the second argument, which starts its children with the first, as `python -P`.
START = "import runpy, sys; _, sys.executable, *sys.argv = sys.argv; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to build the stand-in with")
@pytest.mark.real_clock("a verdict on what a real training spends")
def test_a_healthy_and_a_faulty_training(tmp_path):
    forked = tmp_path / "python"
    forked.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(python("keras"))} "$@"\n')
    forked.chmod(0o700)
    folders = "--out", tmp_path / "out", "--record", tmp_path / "kept"
    scenarios = "--only", "healthy", "--only", "float32"
    done = ran(sys.executable, "-c", START, forked, PROGRAM, *ARGUMENTS, *folders, *scenarios, timeout=150)
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
