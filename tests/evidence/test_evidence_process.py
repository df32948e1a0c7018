"""A measuring process that hangs, crashes or dies: what is said of it, and what is kept."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evidence import process
from evidence.job import Job
from evidence.process import run_child
from waiting import wait_until

PROGRAMS = {
    "answers": "answer({'causes': []})",
    "hangs": "print('at it', flush=True)\nanswer({'half': 1})\nimport time\ntime.sleep(60)",
    "crashes": "answer({'half': 1})\nprint('CUDA_ERROR_LAUNCH_FAILED: an error of the GPU')\n"
    "sys.stdout.flush()\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "dies": "print('no module named jax')\nsys.exit(3)",
    "leaves": "import subprocess\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "answer({'child': child.pid})",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs one of PROGRAMS as the package's own module."""
    package = tmp_path / "evidence"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in PROGRAMS.items():
        (package / f"{name}.py").write_text(
            "import json, sys\njob = json.load(open(sys.argv[1]))\n"
            f"def answer(x): open(job['answer'], 'w').write(json.dumps(x))\n{text}\n"
        )
    monkeypatch.setattr(process, "DEMO", tmp_path)

    def run(name, limit_s=30.0):
        (tmp_path / "answer.json").write_text('{"stale": true}')
        job = Job("healthy", "torch", str(tmp_path), str(tmp_path / "answer.json"))
        return run_child(name, job, tmp_path, dict(os.environ), limit_s)

    return run


def test_an_answer_is_passed_on(run):
    assert run("answers") == {"causes": []}


def test_what_hangs_is_ended_and_keeps_what_it_had_answered(run):
    began = time.perf_counter()
    found = run("hangs", limit_s=2.0)
    assert time.perf_counter() - began < 30
    assert found["half"] == 1 and "stale" not in found
    assert found["error"].startswith("no end within 2 s") and "signal" not in found


def test_a_crash_is_named_with_what_it_said(run):
    found = run("crashes")
    assert found["signal"] == "SIGSEGV" and found["half"] == 1
    assert "ended by SIGSEGV" in found["error"] and "CUDA_ERROR_LAUNCH_FAILED" in found["error"]


def test_a_death_without_an_answer_is_told(run):
    found = run("dies")
    assert "died with exit code 3" in found["error"] and "no module named jax" in found["error"]
    assert found["log"] == ["no module named jax"]


def test_nothing_that_it_started_outlives_it(run):
    child = run("leaves")["child"]
    wait_until(lambda: not alive(child), 20)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_job_that_fails_answers_why(tmp_path):
    """The children's own side, as they run it."""
    job = Job("healthy", "torch", str(tmp_path), str(tmp_path / "answer.json"))
    file = tmp_path / "job.json"
    file.write_text(json.dumps(vars(job)))
    code = (
        "import sys; from evidence.job import NoGpu, run_as_process\n"
        "def work(job): raise NoGpu(f'{job.backend} sees no GPU here')\n"
        f"sys.argv = ['x', {str(file)!r}]; run_as_process(work)"
    )
    demo = Path(process.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=demo, capture_output=True, check=False)
    found = json.loads((tmp_path / "answer.json").read_text())
    assert done.returncode == 1
    assert found == {"error": "torch sees no GPU here", "no_gpu": True}
