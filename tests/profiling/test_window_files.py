"""A window's file: where the Profile tab finds it, and what the reading process hands back."""

import gzip
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from gpu_util_callback.profiling import window_reader
from gpu_util_callback.profiling.profiler_windows import keep, publish
from gpu_util_callback.profiling.window_reader import ReadFailed, WindowReader
from gpu_util_callback.recording import storage
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.recorded import recording_tables


@pytest.fixture
def xplane(trace_data, tmp_path) -> Path:
    """A real window of ten steps, where a profiler would have put it."""
    folder = tmp_path / "window"
    folder.mkdir()
    source = trace_data / "xplane" / "cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb"
    return Path(shutil.copyfile(source, folder / "host.xplane.pb"))


@pytest.fixture
def reader():
    return WindowReader()


def test_reading_in_a_process_gives_what_reading_here_gives(xplane, reader):
    found = reader.read(xplane)
    trace = read_trace(str(xplane))
    expected = recording_tables(analyse(trace))
    for table in ("traced_steps", "kernels"):
        assert set(found.tables[table]) == set(expected[table]) <= set(TABLES[table])
        for column, values in expected[table].items():
            assert np.array_equal(found.tables[table][column].astype(str), values.astype(str))
    assert len(found.tables["traced_steps"]["step"]) == 10
    assert found.device_events == 10
    assert found.events > found.device_events
    assert 0.01 < found.cpu_s < 30


def test_a_damaged_file_says_so_in_one_line(xplane, reader):
    damaged = xplane.with_name("damaged.xplane.pb")
    damaged.write_bytes(xplane.read_bytes()[: xplane.stat().st_size // 2])
    with pytest.raises(ReadFailed, match="damaged") as raised:
        reader.read(damaged)
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_reading_stops_at_its_deadline(xplane):
    reader = WindowReader(timeout_s=0.001)
    with pytest.raises(ReadFailed, match="took more than"):
        reader.read(xplane)
    assert reader._process.returncode < 0  # nothing goes on


def test_a_process_of_the_lowest_priority_reads_until_it_is_given_up(xplane, reader, monkeypatch):
    assert reader._process is None  # a fit without windows starts none
    slow = window_reader._CHILD.replace("from gpu", "import time; time.sleep(600)\nfrom gpu", 1)
    monkeypatch.setattr(window_reader, "_CHILD", slow)
    errors = []

    def read():
        try:
            reader.read(xplane)
        except ReadFailed as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: reader._process is not None and os.getpriority(os.PRIO_PROCESS, reader._process.pid) == 19, 30)
    assert os.getsid(reader._process.pid) != os.getsid(0)  # Ctrl-C is not for it
    reader.give_up()
    thread.join(30)
    assert errors == ["the process that reads it ended with -9"]
    with pytest.raises(ReadFailed, match="no time is left"):
        reader.read(xplane)


def test_profiles_of_one_second_keep_their_own_folders(xplane, tmp_path):
    names = [publish(xplane, str(tmp_path / "logs"), 3) for _ in range(3)]
    assert len(set(names)) == 3
    files = sorted((tmp_path / "logs" / "plugins" / "profile").glob("*/*"))
    assert [file.name for file in files] == ["host.xplane.pb"] * 3
    assert all(file.read_bytes() == xplane.read_bytes() for file in files)


def test_a_home_is_where_the_recording_takes_it_to_be(xplane, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    publish(xplane, "~/logs", 3)
    assert list((tmp_path / "home" / "logs" / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert not (tmp_path / "~").exists()


def test_a_profile_can_go_to_an_object_store(xplane):
    import fsspec

    name = publish(xplane, "memory://windows-test/logs", 3)
    again = publish(xplane, "memory://windows-test/logs", 4)
    files = fsspec.filesystem("memory").glob("/windows-test/logs/plugins/profile/*/*")
    assert {Path(file).parent.name for file in files} == {name, again}
    assert all(file.endswith("/host.xplane.pb") for file in files)


def test_nothing_is_left_of_a_profile_that_cannot_be_written(xplane, tmp_path, monkeypatch):
    def full(temporary, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "_replace", full)
    with pytest.raises(OSError, match="No space"):
        publish(xplane, str(tmp_path / "logs"), 3)
    assert list((tmp_path / "logs" / "plugins" / "profile").iterdir()) == []


def test_redaction_takes_the_host_out_of_name_and_file(xplane, tmp_path):
    data = xplane.read_bytes()
    host = b"secret-machine"
    data += b"\x22" + bytes([len(host)]) + host  # field 4, hostnames, once more
    xplane.write_bytes(data)
    publish(xplane, str(tmp_path / "logs"), 3, redact=lambda name: "host-1")
    (file,) = (tmp_path / "logs" / "plugins" / "profile").glob("*/*")
    assert file.name == "host-1.xplane.pb"
    assert host not in file.read_bytes()
    assert len(recording_tables(analyse(read_trace(str(file))))["traced_steps"]["step"]) == 10


@pytest.mark.parametrize("log_dir", ["{}/logs", "file://{}/logs", "memory://{}/logs"])
def test_a_trace_of_another_kind_is_packed_and_kept_beside_the_events(trace_data, tmp_path, reader, log_dir):
    import fsspec

    source = trace_data / "kineto" / "unit" / "test_pure_cpu.json"
    file = Path(shutil.copyfile(source, tmp_path / "host.pt.trace.json"))
    reader.read(file)
    packed = file.with_name("host.pt.trace.json.gz")
    where = log_dir.format(tmp_path)
    keep(packed, where)
    keep(packed, where)  # of another window
    filesystem, root = fsspec.core.url_to_fs(where)
    kept = sorted(filesystem.find(root))
    assert len(kept) == 2
    for path in kept:
        assert Path(path).match("host_*.pt.trace.json.gz")
        assert gzip.decompress(filesystem.cat(path)) == source.read_bytes()
