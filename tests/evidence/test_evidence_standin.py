"""The whole path of the evidence, on the CPU over the stand-in, as it is typed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")
pytest.importorskip("tensorflow")

PROGRAM = Path(__file__).resolve().parents[2] / "demo" / "gpu_evidence.py"
ARGUMENTS = ("--backend", "tensorflow", "--stand-in", "--seconds", "3")


def evidence(*arguments, timeout=150, **environ):
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler to build the stand-in libnvidia-ml.so.1 with")
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.real_clock("a verdict on what a real training spends")
def test_a_healthy_and_a_faulty_training(tmp_path):
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
    assert healthy["kernel_busy_pct"] == pytest.approx(97, abs=3)
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


def test_without_a_gpu_it_says_so_and_fails(tmp_path):
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


@pytest.mark.slow
def test_costs_are_measured(tmp_path):
    done = evidence(*ARGUMENTS, "--costs", "--out", str(tmp_path), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = json.loads((tmp_path / "costs-tensorflow.json").read_text())
    for load in ("idle", "loaded"):
        assert costs[load]["nvmlDeviceGetPowerUsage"]["count"] >= 30
        assert costs[load]["nvmlGpmSampleGet"]["count"] >= 30
        assert 0 < costs[load]["a whole tick"]["p50_us"] < 1e5
    for part in ("1 Hz", "10 Hz", "50 Hz", "windows"):
        assert costs[part]["pairs"] >= 2 and 0.1 < costs[part]["ratio"] < 10
    assert costs["windows"]["stop_ms"]["count"] == costs["windows"]["windows"]
    assert costs["windows"]["gpm"]["inside"]["absent"] == 0


@pytest.mark.slow
def test_the_demo_shows_recorded_runs_beside_its_own(tmp_path):
    from make_recording import make_recording

    run = tmp_path / "recorded" / "h200-jax" / "slow-input"
    make_recording(run, steps=200, gpus=1)
    truth = {
        "scenario": "slow-input",
        "wrong": "slow batches",
        "backend": "jax",
        "stand_in": False,
        "date": "2026-11-30",
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "keras": "3.15",
    }
    (run / "truth.json").write_text(json.dumps(truth))
    done = subprocess.run(
        [
            sys.executable,
            str(PROGRAM.with_name("train.py")),
            "--steps",
            "30",
            "--no-serve",
            "--log-dir",
            str(tmp_path / "logs"),
            "--recorded",
            str(tmp_path / "recorded"),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report, _, recorded = done.stdout.partition("Recorded earlier, not on this machine now: ")
    assert recorded.startswith("2026-11-30, NVIDIA H200, driver 580.1, Keras 3.15 on jax")
    assert "slow-input: slow batches" in recorded and "slow-input" not in report
    names = {
        path.parent.parent.parent.relative_to(tmp_path / "logs").as_posix()
        for path in (tmp_path / "logs").rglob("plugins/gpu_utilization/*")
    }
    title = "2026-11-30, NVIDIA H200, driver 580.1, Keras 3.15 on jax"
    assert names == {"1-healthy", "2-slow-map", "3-long-validation", f"recorded/{title}/slow-input"}
