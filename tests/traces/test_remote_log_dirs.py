"""Object stores that do not answer, or not to us: one line in time, and the program ends."""

import subprocess
import sys
import threading

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from xspace_builder import Space

from gpu_util_callback.cli import main
from gpu_util_callback.cli.remote import _login_advice, wait_for_answer

NEVER = threading.Event()


class Silent(MemoryFileSystem):
    """Never answers, as gcsfs on a machine without credentials."""

    protocol = "silent"

    def ls(self, path, detail=True, **kwargs):
        NEVER.wait(600)
        return []


class Refusing(MemoryFileSystem):
    """Answers that it does not know us, as s3fs without credentials."""

    protocol = "refusing"

    def ls(self, path, detail=True, **kwargs):
        raise RuntimeError("Anonymous caller does not\nhave access.")


@pytest.fixture(autouse=True)
def stores(register_store):
    for store in (Silent, Refusing):
        register_store(store)
    yield
    NEVER.set()
    NEVER.clear()


def test_what_it_takes_to_log_in_is_said():
    for scheme in ("gs", "s3", "abfs", "simplecache::gs"):
        assert _login_advice(scheme)
    assert "gcloud auth application-default login" in _login_advice("gcs") and _login_advice("silent") == ""


def test_a_store_that_refuses_is_one_line(capsys):
    assert main(["report", "refusing://bucket/logs"]) == 2
    err = capsys.readouterr().err
    assert "cannot be opened: RuntimeError: Anonymous caller does not have access." in err
    assert err.count("\n") == 1


def test_a_trace_is_not_written_to_a_silent_store_for_ever(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wait_for_answer, "__defaults__", (0.2, ""))
    space = Space()
    space.host.line("python", 1).event("train", 0, 900, step_num=0, _r=1)
    (tmp_path / "t.xplane.pb").write_bytes(space.bytes())
    assert main(["trace", str(tmp_path / "t.xplane.pb"), "--log-dir", "silent://logs"]) == 2
    assert "no answer from silent://" in capsys.readouterr().err


def test_the_program_ends_although_the_store_s_library_waits_on():
    code = (
        "import sys, time, fsspec\n"
        "from fsspec.implementations.memory import MemoryFileSystem\n"
        "class Silent(MemoryFileSystem):\n"
        "    protocol = 'silent'\n"
        "    def ls(self, path, detail=True, **kwargs):\n"
        "        time.sleep(3600)\n"
        "fsspec.register_implementation('silent', Silent)\n"
        "from gpu_util_callback.cli import main\n"
        "sys.exit(main(['report', 'silent://bucket/logs', '--timeout', '0.2']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-util report: no answer from silent:// within 0.2 s")
    assert done.stderr.count("\n") == 1 and "--timeout S waits longer" in done.stderr
