"""A window's file: where the Profile tab finds it, and what the reading process hands back."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.traces import analyse, read_trace
from gpu_util_callback.traces.window_job import load, main
from gpu_util_callback.window_files import ReadFailed, publish, read_in_process


@pytest.fixture
def xplane(trace_data, tmp_path) -> Path:
    """A real window of ten steps, where a profiler would have put it."""
    folder = tmp_path / "window"
    folder.mkdir()
    source = trace_data / "xplane" / "cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb"
    return Path(shutil.copyfile(source, folder / "host.xplane.pb"))


def test_reading_in_a_process_gives_what_reading_here_gives(xplane):
    found = read_in_process(xplane)
    trace = read_trace(str(xplane))
    expected = analyse(trace).tables()
    for table in ("traced_steps", "kernels"):
        assert set(found.tables[table]) == set(expected[table]) <= set(TABLES[table])
        for column, values in expected[table].items():
            assert np.array_equal(found.tables[table][column].astype(str), values.astype(str))
    assert len(found.tables["traced_steps"]["step"]) == 10
    assert found.device_events == 10
    assert found.events > found.device_events
    assert 0.01 < found.cpu_s < 30


def test_the_reading_process_has_the_lowest_priority(xplane):
    priorities = []

    def watch(process):
        def look():
            while process.poll() is None:
                try:
                    priorities.append(os.getpriority(os.PRIO_PROCESS, process.pid))
                except ProcessLookupError:
                    return
                time.sleep(0.002)

        threading.Thread(target=look, daemon=True).start()

    read_in_process(xplane, started=watch)
    assert max(priorities) == 19


def test_a_damaged_file_says_so_in_one_line(xplane):
    data = xplane.read_bytes()
    xplane.write_bytes(data[: len(data) // 2])
    with pytest.raises(ReadFailed, match="damaged") as raised:
        read_in_process(xplane)
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_reading_stops_at_its_deadline(xplane):
    with pytest.raises(ReadFailed, match="took more than"):
        read_in_process(xplane, timeout_s=0.001)


def test_the_job_reports_by_its_exit_status(xplane, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "nice", lambda by: by)  # else this test process would keep it
    assert main([str(xplane), str(tmp_path / "out.npz")]) == 0
    tables, about = load(tmp_path / "out.npz")
    assert about["events"] > 0
    assert list(tables["traced_steps"]["gpu"]) == [0] * 10
    json.dumps(about)
    assert main([str(tmp_path / "nothing"), str(tmp_path / "out2.npz")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_profiles_of_one_name_keep_their_own_folders(xplane, tmp_path):
    names = [publish(xplane, str(tmp_path / "logs"), "2026_01_01_step_3") for _ in range(3)]
    assert len(set(names)) == 3
    files = sorted((tmp_path / "logs" / "plugins" / "profile").glob("*/*"))
    assert [file.name for file in files] == ["host.xplane.pb"] * 3
    assert all(file.read_bytes() == xplane.read_bytes() for file in files)


def test_a_profile_can_go_to_an_object_store(xplane):
    import fsspec

    name = publish(xplane, "memory://windows-test/logs", "2026_01_01_step_3")
    again = publish(xplane, "memory://windows-test/logs", "2026_01_01_step_4")
    files = fsspec.filesystem("memory").glob("/windows-test/logs/plugins/profile/*/*")
    assert {Path(file).parent.name for file in files} == {name, again}
    assert all(file.endswith("/host.xplane.pb") for file in files)


def test_nothing_is_left_of_a_profile_that_cannot_be_written(xplane, tmp_path, monkeypatch):
    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space"):
        publish(xplane, str(tmp_path / "logs"), "2026")
    assert list((tmp_path / "logs" / "plugins" / "profile").iterdir()) == []


def test_redaction_takes_the_host_out_of_name_and_file(xplane, tmp_path):
    data = xplane.read_bytes()
    host = b"secret-machine"
    data += b"\x22" + bytes([len(host)]) + host  # field 4, hostnames, once more
    xplane.write_bytes(data)
    publish(xplane, str(tmp_path / "logs"), "2026", redact=lambda name: "host-1")
    (file,) = (tmp_path / "logs" / "plugins" / "profile").glob("*/*")
    assert file.name == "host-1.xplane.pb"
    assert host not in file.read_bytes()
    assert len(analyse(read_trace(str(file))).tables()["traced_steps"]["step"]) == 10
