"""Which of our modules a program loads: reports, traces and remedies only once they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[2] / "harness" / "support"
OURS = "gpu_util_callback."
# What no fit without a GPU loads, whatever is found in it.
NEVER = (
    "cli",
    "diagnosis.check",
    "diagnosis.compare",
    "diagnosis.sessions",
    "diagnosis.survey",
    "diagnosis.total_time",
    "doctor",
    "gpus._mapping",
    "gpus._reader",
    "recording.alignment",
    "recording.discovery",
    "recording.reader",
    "report.notebook",
    "report.tables",
    "report.terminal",
    "traces",
    "trying",
)
REMEDIES = ("callbacks", "host", "input", "loaders", "long_fetches", "memory", "table", "tf_data")
NAMES = "\nimport sys\nprint(*sorted(name for name in sys.modules), sep='\\n')"

FIT = """
import keras, numpy
from gpu_util_callback import GpuUtilCallback
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = numpy.zeros((256, 4), "float32")
model.fit(x, x[:, :1], batch_size=32, epochs=2, verbose=0, callbacks=[GpuUtilCallback({folder!r})])
"""
JUDGED = """
from generated_runs import GPU, Generated
run = Generated(seed=1, gpus=[GPU])
run.steps({steps})
found = run.diagnose()
print("found", *(finding["cause"] for finding in [*found["findings"], *found["spans"]]))
"""


def loaded(program: str) -> tuple[set[str], str]:
    """Return the modules of ours that a program has loaded at its end, without our name, and what it printed."""
    code = f"import sys\nsys.path.insert(0, {str(SUPPORT)!r}){program}{NAMES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    lines = done.stdout.splitlines()
    return {line.removeprefix(OURS) for line in lines if line.startswith(OURS)}, done.stdout


def below(names: set[str], *packages: str) -> list[str]:
    return sorted(name for name in names if any(f"{name}.".startswith(f"{package}.") for package in packages))


@pytest.mark.heavy
def test_a_fit_loads_neither_reports_nor_traces(tmp_path):
    names, _ = loaded(FIT.format(folder=str(tmp_path)))
    assert {"callback", "recorder.recorder", "diagnosis.engine", "report.screen"} <= names  # it was judged, and said so
    assert below(names, *NEVER) == []


def test_remedies_are_loaded_with_the_first_finding():
    remedies = [f"diagnosis.advice.{name}" for name in REMEDIES]
    healthy, printed = loaded(JUDGED.format(steps="400, step_ms=10"))
    assert "found\n" in printed and below(healthy, *remedies) == []
    waiting, printed = loaded(JUDGED.format(steps="400, step_ms=10, wait_ms=30"))
    assert "found input_bound\n" in printed and "diagnosis.advice.input" in waiting


def test_importing_us_loads_neither_the_recorder_nor_the_diagnosis():
    names, _ = loaded("\nimport gpu_util_callback")
    assert names == {"_version", "redaction"}


def test_scalars_are_written_without_protobuf(tmp_path):
    write = f"w = ScalarWriter({str(tmp_path)!r}); w.marker(); w.points([(1, {{'loss': 2.0}}, 3.0)]); w.close()"
    names, printed = loaded(f"\nfrom gpu_util_callback.recording.event_files import ScalarWriter\n{write}")
    assert "recording.event_files" in names and "google.protobuf" not in printed
