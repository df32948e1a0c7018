"""What is said to run on Windows and macOS runs where this system looks like them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda import TENSORFLOW, fake_framework
from fork_server import python
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.recording import storage
from gpu_util_callback.recording.manifest import process_facts

HERE = Path(__file__).parent


def run(start: list[str], *command: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*start, *command],
        capture_output=True,
        timeout=250,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
    )


@pytest.mark.parametrize(
    "encoding", ["ascii", *[pytest.param(wider, marks=pytest.mark.slow) for wider in ("cp1252", "cp437")]]
)
def test_a_fit_without_proc_and_fork_on_a_console_of_few_characters(encoding, tmp_path):
    pytest.importorskip("tensorflow")
    imported = fake_framework(tmp_path / "fake", "tensorflow", "2.21.0", TENSORFLOW.format(build={}, gpus=0))
    done = run(python("keras"), str(HERE / "fit_program.py"), str(tmp_path / "logs"), str(imported), encoding)
    said, warned = done.stdout.decode(encoding), done.stderr.decode(encoding, "replace")
    assert done.returncode == 0, said[-3000:] + warned[-3000:]
    assert "Traceback" not in warned, warned[-3000:]
    (recording,) = read_recordings(tmp_path / "logs")
    assert recording.status == "ended" and not recording.problems
    account = recording.account
    assert sum(account["time_s"].values()) == pytest.approx(account["wall_s"], abs=0.001)
    sources = {one["source"] for one in recording.facts["unavailable"]}
    assert not sources & {"step times", "callback times", "the recording", "the diagnosis"}
    verdicts = [line for line in said.splitlines() if line.startswith("gpu-util:")]
    assert verdicts, "the verdict is printed, with ? for what the console lacks"
    assert "callback" in said and "?" in said


READ = """
import another_system, sys
another_system.pretend()
from gpu_util_callback.cli import main
from gpu_util_callback import read_recordings
(recording,) = read_recordings(sys.argv[1])
assert recording.status == "ended" and len(recording.steps["step"]) == 300
assert main(["report", sys.argv[1]]) == 0
assert main(["report", sys.argv[1], "--html", sys.argv[2]]) == 0
"""


def test_a_recording_from_a_server_is_read_on_a_laptop(tmp_path):
    make_recording(tmp_path / "logs", "thirds", steps=300, gpus=2)
    poor = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = run([sys.executable], "-c", READ, str(tmp_path / "logs"), str(tmp_path / "page.html"), **poor)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert "The input pipeline starves the GPU" in done.stdout.decode("cp1252")
    assert 'charset="utf-8"' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_who_writes_is_known_as_far_as_the_system_says(monkeypatch):
    absent = FileNotFoundError(2, "No such file or directory")

    def missing(*_, **__):
        raise absent

    for name in ("read_text", "read_bytes", "readlink"):
        monkeypatch.setattr(Path, name, missing)
    facts = process_facts()
    assert facts["pid"] == os.getpid() and facts["host"]
    assert facts["boot_id"] is facts["process_started"] is facts["pid_namespace"] is None


def test_a_file_that_a_reader_has_open_is_replaced_a_moment_later(tmp_path, monkeypatch):
    """Windows refuses meanwhile."""
    monkeypatch.setattr(storage, "_OPEN_FILES_STAY", True)
    real, refused = os.replace, []

    def busy(source, target):
        if len(refused) < 2:
            refused.append(target)
            raise PermissionError(13, "Access is denied")
        real(source, target)

    monkeypatch.setattr(storage.os, "replace", busy)
    path = str(tmp_path / "manifest.json")
    storage.LocalStorage().write(path, b"{}")
    assert Path(path).read_bytes() == b"{}" and len(refused) == 2
    monkeypatch.setattr(storage.os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13)))
    with pytest.raises(PermissionError):
        storage.LocalStorage().write(path, b"{}")
    assert [one.name for one in tmp_path.iterdir()] == ["manifest.json"], "no leftover"


def test_elsewhere_a_refusal_is_final(tmp_path, monkeypatch):
    calls = []

    def never(*paths):
        calls.append(paths)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.os, "replace", never)
    with pytest.raises(PermissionError):
        storage.LocalStorage().write(str(tmp_path / "x"), b"")
    assert len(calls) == 1


@pytest.mark.parametrize("path", [r"C:\Users\me\logs", "C:/logs/run1", r"\\server\share\logs"])
def test_a_path_of_windows_is_no_url(path):
    from gpu_util_callback.cli.report import _names

    assert not storage.is_remote(path)
    assert _names([path])[path] in ("logs", "run1")


def test_what_is_listed_in_the_documentation_is_what_is_tested_here():
    page = (HERE.parents[1] / "docs" / "works-with.md").read_text(encoding="utf-8")
    assert "tests/platforms" in page
    assert all(name in page for name in ("Windows", "WSL", "macOS"))
