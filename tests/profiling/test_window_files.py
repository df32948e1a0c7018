"""A window's file: where the Profile tab finds it, and what the reading process hands back."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

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
    reader = WindowReader()
    yield reader
    reader.close()
    assert reader._process is None


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


def test_one_process_of_the_lowest_priority_reads_all_windows(xplane, reader):
    assert reader._process is None  # a fit without windows starts none
    first = reader.read(xplane)
    pid = reader._process.pid
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) != os.getsid(0)  # Ctrl-C is not for it
    second = reader.read(xplane)
    assert reader._process.pid == pid
    assert second.cpu_s < first.cpu_s  # it has imported numpy by now
    assert second.events == first.events


def test_a_damaged_file_says_so_in_one_line_and_the_next_one_is_read(xplane, reader):
    damaged = xplane.with_name("damaged.xplane.pb")
    damaged.write_bytes(xplane.read_bytes()[: xplane.stat().st_size // 2])
    with pytest.raises(ReadFailed, match="damaged") as raised:
        reader.read(damaged)
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)
    assert reader.read(xplane).events


def test_reading_stops_at_its_deadline(xplane):
    reader = WindowReader(timeout_s=0.001)
    with pytest.raises(ReadFailed, match="took more than"):
        reader.read(xplane)
    reader.close()


def test_a_process_that_dies_is_replaced(xplane, reader):
    reader.read(xplane)
    pid = reader._process.pid
    os.kill(pid, signal.SIGKILL)
    try:
        reader.read(xplane)
    except ReadFailed as error:  # it was asked before its death was seen
        assert "ended with" in str(error)
        reader.read(xplane)
    assert reader._process.pid != pid


def test_reading_can_be_given_up(xplane, reader):
    reader.read(xplane)
    reader.give_up()
    with pytest.raises(ReadFailed, match="no time is left"):
        reader.read(xplane)


def test_the_process_ends_with_its_parent(xplane):
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from gpu_util_callback.profiling.window_reader import WindowReader
        reader = WindowReader()
        reader.read(Path(sys.argv[1]))
        print(reader._process.pid, flush=True)
        os.kill(os.getpid(), 9)
        """)
    done = subprocess.run([sys.executable, "-c", script, str(xplane)], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
            break  # ended; nobody has asked for its status
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_profiles_of_one_name_keep_their_own_folders(xplane, tmp_path):
    names = [publish(xplane, str(tmp_path / "logs"), "2026_01_01_step_3") for _ in range(3)]
    assert len(set(names)) == 3
    files = sorted((tmp_path / "logs" / "plugins" / "profile").glob("*/*"))
    assert [file.name for file in files] == ["host.xplane.pb"] * 3
    assert all(file.read_bytes() == xplane.read_bytes() for file in files)


def test_a_home_is_where_the_recording_takes_it_to_be(xplane, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    publish(xplane, "~/logs", "2026_01_01_step_3")
    assert list((tmp_path / "home" / "logs" / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert not (tmp_path / "~").exists()


def test_a_profile_can_go_to_an_object_store(xplane):
    import fsspec

    name = publish(xplane, "memory://windows-test/logs", "2026_01_01_step_3")
    again = publish(xplane, "memory://windows-test/logs", "2026_01_01_step_4")
    files = fsspec.filesystem("memory").glob("/windows-test/logs/plugins/profile/*/*")
    assert {Path(file).parent.name for file in files} == {name, again}
    assert all(file.endswith("/host.xplane.pb") for file in files)


def test_nothing_is_left_of_a_profile_that_cannot_be_written(xplane, tmp_path, monkeypatch):
    def full(temporary, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "_replace", full)
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
