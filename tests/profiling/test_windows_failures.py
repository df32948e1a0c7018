"""Windows that fail are named, with their cure, and the fit goes on."""

import threading
import time

import pytest
from fake_profiler import Door, FakeProfiler, Reader, fit, reasons, rows, tables_of, train
from waiting import wait_until

from gpu_util_callback.profiling.window_reader import ReadFailed

pytestmark = pytest.mark.real_clock("threads that hang are waited for")


@pytest.mark.parametrize(
    ("device", "fails", "reason", "cure"),
    [
        (False, "start", "it does not start", "buy another"),
        (False, "fault", "AttributeError: no such thing", 'trace="off"'),
        (False, "stop", "it wrote nothing", "make room"),
        (True, "stop", "it wrote nothing", "make room"),
        (True, "full", "OSError: [Errno 28] No space left on device", ""),
    ],
)
def test_a_profiler_that_fails_is_named_and_left(make, device, fails, reason, cure):
    windows, _ = make(trace=[(3, 6), (8, 9), (11, 12)], profiler=FakeProfiler(Door(), device=device, fails=fails))
    assert fit(windows, 20) == []
    assert windows.planner._unread_windows == {}, "none is waited for"
    (entry,) = windows.unavailable
    assert entry["source"] == "profiler windows"
    assert reason in entry["reason"] and cure in entry["cure"]


def test_a_recording_that_does_not_end_is_named_and_its_thread_ends(make):
    windows, _ = make(trace=[(3, 6), (8, 9)], profiler=FakeProfiler(Door(), fails="halt"))
    fit(windows, 12)
    assert not windows.busy
    assert reasons(windows) == ["RuntimeError: it goes on"]


def test_a_folder_that_cannot_be_written_costs_the_profile_tab_only(make, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    windows, _ = make(log_dir=str(tmp_path / "file"))
    (result,) = fit(windows, 10)
    assert "profile" not in result.facts
    assert len(result.tables["traced_steps"]["step"]) == 3
    (entry,) = windows.unavailable
    assert entry["source"] == "Profile tab"
    assert "plugins/profile" in entry["reason"]
    assert entry["cure"]


def test_a_file_that_cannot_be_read_is_still_in_the_profile_tab(make):
    windows, _ = make(reader=Reader(ReadFailed("damaged")))
    (result,) = fit(windows, 10)
    assert result.facts["profile"]
    assert "traced_steps" not in tables_of(result)
    assert "damaged" in reasons(windows)[0]
    assert "gpu-util trace" in windows.unavailable[0]["cure"]


@pytest.mark.parametrize(
    ("problem", "cure"),
    [
        (
            "host: Insufficient privilege to run libcupti (you need root permission).",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("host: Failed to load libcupti (is it installed and accessible?)", "LD_LIBRARY_PATH"),
        ("Detected GPU events dropped on host: 12 driver events", "TraceSchedule(steps=1)"),
        ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "nsys"),
        ("something new", "gpu-util doctor"),
    ],
)
def test_what_the_profiler_complains_of_is_shown_with_its_cure(make, problem, cure):
    profiler = FakeProfiler(Door(), device=True)
    windows, _ = make(profiler=profiler, reader=Reader(rows([3, 4, 5], -1, [problem], 0)))
    fit(windows, 10)
    (entry,) = windows.unavailable
    assert entry["source"] == "profiler"
    assert entry["reason"] == problem
    assert cure in entry["cure"]


def test_dropped_events_are_named_once_whatever_their_number(make):
    class Dropping(Reader):
        def read(self, file):
            self.files.append(file)
            problem = f"Detected GPU events dropped on host: {len(self.files)} driver events"
            return rows(range(20), problems=[problem])

    windows, _ = make(trace=[(3, 4), (6, 7), (9, 10)], profiler=FakeProfiler(Door(), device=True), reader=Dropping())
    assert len(fit(windows, 12)) == 3
    (entry,) = windows.unavailable
    assert "1 driver events" in entry["reason"]


def test_a_machine_without_a_gpu_misses_none(make):
    windows, _ = make(reader=Reader(rows([3, 4, 5], -1, ["host: No GPU detected."], 0)))
    assert len(fit(windows, 10)) == 1
    assert windows.unavailable == []


def test_a_gpu_without_events_is_named(make):
    profiler = FakeProfiler(Door(), device=True)
    windows, _ = make(profiler=profiler, reader=Reader(rows([3, 4, 5], -1, device_events=0)))
    (result,) = fit(windows, 10)
    assert reasons(windows) == ["a window holds no event of any GPU"]
    assert result.points() == []  # the host's row is no kernel time of 0


def test_a_fit_left_by_an_exception_does_not_leave_the_profiler_running(make):
    over = threading.Event()
    windows, profiler = make(trace=[(3, 100)], fit_is_over=over.is_set)
    windows.begin()
    train(windows, 7)
    assert profiler.door.running == "ours"
    over.set()
    wait_until(lambda: not profiler.door.running, 5)
    assert profiler.door.running is None
    windows.close(5)
    (result,) = windows.drain()
    assert list(result.tables["traced_steps"]["step"]) == [3, 4, 5]  # step 6 was left in the middle


def test_the_next_fit_ends_the_window_of_one_that_was_left(make):
    door = Door()
    profiler = FakeProfiler(door)
    left, _ = make(trace=[(3, 100)], profiler=profiler)
    left.begin()
    train(left, 5)
    after, _ = make(trace=[(0, 2)], profiler=profiler)
    after.begin()
    wait_until(lambda: not door.running, 5)
    train(after, 4)
    after.close(5)
    assert len(after.drain()) == 1


def test_a_reading_that_takes_too_long_is_given_up(make):
    class Slow(Reader):
        killed = threading.Event()

        def read(self, file):
            self.killed.wait(5)
            raise ReadFailed("no time is left for it")

        def give_up(self):
            self.killed.set()

    windows, _ = make(reader=Slow())
    windows.begin()
    train(windows, 10)
    before = time.monotonic()
    windows.close(0.2)
    assert time.monotonic() - before < 2
    assert reasons(windows) == ["a window could not be read: no time is left for it"]
