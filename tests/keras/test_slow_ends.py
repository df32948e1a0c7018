"""A recording whose end cannot be written at once: the loop goes on, the rows come later."""

from __future__ import annotations

import errno
import functools
import itertools
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from programs import ran
from waiting import flush_often, newest, wait_until

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.recorder import intake, messages, outputs, recorder
from gpu_util_callback.recorder.intake import GpuSamples
from gpu_util_callback.recording import writer
from gpu_util_callback.recording.event_files import ScalarWriter
from gpu_util_callback.recording.storage import LocalStorage
from gpu_util_callback.steps.assemble import Assembler
from gpu_util_callback.steps.loop import Loop
from gpu_util_callback.steps.timeline import Timeline

pytestmark = [pytest.mark.real_clock("ends and hangs within seconds"), pytest.mark.usefixtures("heard")]

STEPS = 20


def recorded_loop(folder: Path) -> float:
    """A recorded loop; how long the end of its block took, in seconds."""
    with GpuUtilMonitor(folder, report=False) as monitor:
        for _ in monitor.batches(range(STEPS)):
            pass
        start = time.perf_counter()
    return time.perf_counter() - start


@pytest.fixture
def hangs(monkeypatch):
    """Writing segments hangs until this event is set."""
    released = threading.Event()
    write = LocalStorage.write

    def hanging(self, path, data):
        if "segment-" in path:
            released.wait(60)
        write(self, path, data)

    monkeypatch.setattr(LocalStorage, "write", hanging)
    monkeypatch.setattr(recorder.Recorder.end, "__defaults__", (0.3,))
    monkeypatch.setattr(recorder, "_patience_s", recorder.CLOSE_S)
    yield released
    released.set()


def test_a_disk_that_hangs_holds_up_nobody_and_gets_the_end_later(tmp_path, hangs):
    assert recorded_loop(tmp_path) < 3
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "live", "nothing of it could be written"
    hangs.set()
    recording = newest(tmp_path, "ended")
    assert len(recording.steps["step"]) == STEPS


def test_a_failed_end_is_tried_again(tmp_path, monkeypatch):
    write = LocalStorage.write
    failures = []

    def failing(self, path, data):
        if "segment-" in path and len(failures) < 2:
            failures.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, data)

    monkeypatch.setattr(LocalStorage, "write", failing)
    monkeypatch.setattr(outputs, "RETRIES_S", (0.05, 0.05))
    recorded_loop(tmp_path)
    recording = newest(tmp_path, "ended")
    assert len(failures) == 2
    assert len(recording.steps["step"]) == STEPS


@pytest.mark.parametrize(("number", "cure"), [(errno.ENOSPC, "make room"), (errno.EACCES, "may write there")])
def test_what_to_do_where_no_end_is_written_depends_on_the_error(number, cure, tmp_path, monkeypatch, caplog):
    def failing(self, path, data):
        raise OSError(number, "refused")

    monkeypatch.setattr(LocalStorage, "write", failing)
    monkeypatch.setattr(outputs, "RETRIES_S", ())
    recorded_loop(tmp_path)
    wait_until(lambda: re.search(f"the recording.s end: .*{cure}", caplog.text), 20)


def loop_with_a_failing_disk(log_dir, fail, seconds: float):
    """(seconds that the loop's end took, its recorder): writing fails once it is under way."""
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        begun = time.perf_counter()
        for batch in monitor.batches(itertools.count()):
            time.sleep(0.01)
            if batch == 1:
                recorded = monitor._recorder
                wait_until(lambda recorded=recorded: recorded.path, 20)
                time.sleep(0.1)  # what else is opened at the start
                fail()
            if time.perf_counter() - begun > seconds:
                break
        start = time.perf_counter()
    return time.perf_counter() - start, recorded


@pytest.mark.parametrize("seconds", [0.2, 0.5], ids=["first write", "known"])
def test_an_end_that_cannot_be_written_is_not_waited_for(seconds, tmp_path, monkeypatch):
    """It is tried again while the program goes on, and the next loop begins at once."""
    monkeypatch.setattr(outputs, "RETRIES_S", (4.0,))
    if seconds > 0.4:
        flush_often(monkeypatch)

    def fail():
        """A file is in the place of a folder, which cannot be made again."""
        shutil.rmtree(tmp_path / "logs" / "plugins")
        (tmp_path / "logs" / "plugins").write_text("in the way")

    took_s, recorded = loop_with_a_failing_disk(tmp_path / "logs", fail, seconds)
    assert took_s < 2, "0.5 s at most, and five before"
    assert recorded._outputs.failing and not recorded._closed.is_set()
    start = time.perf_counter()
    with GpuUtilMonitor(tmp_path / "elsewhere", report=False):
        begun_s = time.perf_counter() - start
    assert begun_s < 1, "and two before"
    recorded._outputs.in_a_hurry.set()
    assert recorded._closed.wait(20)


def test_a_store_that_refuses_is_not_waited_for(monkeypatch, register_store):
    monkeypatch.setattr(outputs, "RETRIES_S", (4.0,))

    class Refusing(MemoryFileSystem):
        protocol = "refusing"
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]
        refuses = False

        def pipe_file(self, path, value, **options):
            if Refusing.refuses:
                raise PermissionError("403 Forbidden")
            return super().pipe_file(path, value, **options)

    register_store(Refusing)
    fail = functools.partial(setattr, Refusing, "refuses", True)
    took_s, recorded = loop_with_a_failing_disk("refusing://bucket/run", fail, 0.5)
    assert took_s < 2
    assert recorded._outputs.failing and not recorded._closed.is_set()
    Refusing.refuses = False  # credentials are back: the end is written after all
    recorded._outputs.in_a_hurry.set()
    assert recorded._closed.wait(20)
    (recording,) = read_recordings("refusing://bucket/run")
    assert recording.status == "ended" and len(recording.steps["step"]) > 10


def test_the_end_of_the_process_cuts_the_attempts_short(tmp_path):
    program = """
import contextlib, os, shutil, sys, time
from gpu_util_callback import GpuUtilMonitor
with GpuUtilMonitor(sys.argv[1], report=False) as monitor:
    for batch in monitor.batches(range(20)):
        time.sleep(0.05)
        while batch == 15 and not os.path.isfile(sys.argv[1]):  # between two flushes, or in one
            shutil.rmtree(sys.argv[1], ignore_errors=True)
            with contextlib.suppress(IsADirectoryError):
                open(sys.argv[1], "w").close()
print(time.time(), flush=True)
"""
    done = ran(sys.executable, "-c", program, tmp_path / "logs", timeout=60)
    assert time.time() - float(done.stdout) < 4, "7.5 s of attempts, and five were waited for"
    assert "it is missing" in done.stderr, done.stderr


def check_rows_come_before_the_end(log_dir, released):
    """All rows are there while the recorder hangs, and its end once it is `released`."""
    recorded_loop(log_dir)
    wait_until(lambda: len(read_recordings(log_dir)) and len(read_recordings(log_dir)[0].steps["step"]), 20)
    assert read_recordings(log_dir)[0].status == "live", "the recorder still hangs"
    released.set()
    assert len(newest(log_dir, "ended").steps["step"]) == STEPS


def test_rows_come_before_all_that_may_take_a_while(tmp_path, monkeypatch):
    """On a machine so busy that a short fit is over before its recorder has even begun."""
    released = threading.Event()
    begin, start = recorder.Outputs.open_recording, GpuSamples.start

    def slow(self, facts):
        time.sleep(0.4)
        return begin(self, facts)

    monkeypatch.setattr(recorder, "LATE_S", 0.1)
    monkeypatch.setattr(recorder.Outputs, "open_recording", slow)
    monkeypatch.setattr(GpuSamples, "start", lambda self, *more: (released.wait(60), start(self, *more)))
    monkeypatch.setattr(recorder.Recorder.end, "__defaults__", (0.2,))
    check_rows_come_before_the_end(tmp_path, released)


def test_rows_are_there_while_the_end_is_still_made_up(tmp_path, monkeypatch):
    """Whatever a stalled machine is slow at once the loop is over."""
    released = threading.Event()

    def wait(self, *more):
        released.wait(60)

    monkeypatch.setattr(GpuSamples, "stop", wait)
    monkeypatch.setattr(recorder.Recorder.end, "__defaults__", (0.2,))
    check_rows_come_before_the_end(tmp_path, released)


@pytest.mark.parametrize("owner, where", [(Loop, "leave"), (Timeline, "finish")])
def test_ctrl_c_while_the_loop_is_being_closed(owner, where, tmp_path, monkeypatch):
    """It reaches the caller, and the recording's thread does not wait for more."""

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorded_loop(tmp_path)
    newest(tmp_path, "interrupted" if where == "leave" else "ended")


def test_a_process_that_may_have_no_more_threads(tmp_path, monkeypatch, caplog):
    """The loop goes on without a recording; the next one is recorded again."""

    def full(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        recorded_loop(tmp_path)
    messages.drain(5)
    assert "can't start new thread" in caplog.text
    recorded_loop(tmp_path)
    assert len(newest(tmp_path, "ended").steps["step"]) == STEPS


@pytest.mark.parametrize("again", [False, True])
def test_a_process_that_has_no_room_for_the_writing_thread(tmp_path, monkeypatch, again):
    """The recorder's thread writes, from the start on, until there is room for another one."""
    start, begun = threading.Thread.start, []

    def full(self):
        if self.name == "gpu-util-writer" and not (again and begun.count("failed") >= 2):
            begun.append("failed")
            raise RuntimeError("can't start new thread")
        start(self)
        begun.append(self.name)

    monkeypatch.setattr(threading.Thread, "start", full)
    flush_often(monkeypatch)
    with GpuUtilMonitor(tmp_path, report=False) as monitor:
        for step in monitor.batches(range(STEPS)):
            if step == STEPS // 2:
                newest(tmp_path, "live")
                wait_until(lambda: "gpu-util-writer" in begun if again else begun.count("failed") > 3)
    assert len(newest(tmp_path, "ended").steps["step"]) == STEPS


def test_a_writing_thread_without_memory_waits_for_it(tmp_path, monkeypatch):
    """Wherever the memory is missing, no row is lost."""
    faults: dict[str, int] = {}

    def short(owner, name, times):
        method = getattr(owner, name)

        def failing(*arguments, **options):
            if faults.setdefault(name, 0) < times:
                faults[name] += 1
                raise MemoryError
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, failing)

    monkeypatch.setattr(outputs, "RETRIES_S", (0.05, 0.05, 0.05))
    short(outputs.Outputs, "_write_or_seal", 2)
    short(writer.RecordingWriter, "open", 1)
    short(writer.RecordingWriter, "_move_rows_to_waiting", 2)
    recorded_loop(tmp_path)
    assert len(newest(tmp_path, "ended").steps["step"]) == STEPS
    assert faults == {"_write_or_seal": 2, "open": 1, "_move_rows_to_waiting": 2}


SLOW = """
import sys, time
from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.recorder import recorder
from gpu_util_callback.recording.storage import LocalStorage

write = LocalStorage.write

def slow(self, path, data):
    if "segment-" in path or sys.argv[2] == "60":
        time.sleep(float(sys.argv[2]))
    write(self, path, data)

LocalStorage.write = slow
recorder.Recorder.end.__defaults__ = (0.2,)
recorder._patience_s = recorder.ANSWER_S = 0.5
with GpuUtilMonitor(sys.argv[1], report=False) as monitor:
    for _ in monitor.batches(range(20)):
        pass
    print(time.time(), flush=True)
"""


def test_the_end_of_the_process_waits_for_the_end_of_the_recording(tmp_path):
    done = ran(sys.executable, "-c", SLOW, tmp_path, 0.4, timeout=60)
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "ended" and len(recording.steps["step"]) == STEPS, done.stderr


def test_the_end_of_the_process_does_not_wait_again_for_storage_that_hangs(tmp_path):
    done = ran(sys.executable, "-c", SLOW, tmp_path, 60, timeout=60)
    took_s = time.time() - float(done.stdout)
    assert 0.2 <= took_s < 5, took_s
    assert "it is missing" in done.stderr, done.stderr


def test_rows_do_not_wait_for_the_diagnosis(tmp_path, monkeypatch):
    """A training that is killed meanwhile has them."""
    diagnose, released = outputs.Outputs.diagnose, threading.Event()
    monkeypatch.setattr(outputs.Outputs, "diagnose", lambda *given: (released.wait(60), diagnose(*given)))
    flush_often(monkeypatch)
    try:
        with GpuUtilMonitor(tmp_path, report=False) as monitor:
            for _ in monitor.batches(range(STEPS)):
                time.sleep(0.01)
            wait_until(lambda: len(read_recordings(tmp_path)[0].steps["step"]), 20)
            released.set()
    finally:
        released.set()


IMPORTED = """
import sys, time
import fsspec
from fsspec.implementations.local import LocalFileSystem
from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.recorder import recorder

class Heavy(LocalFileSystem):
    protocol = "heavy"
    def __init__(self, *args, **options):
        if not Heavy._cache:
            time.sleep(0.4)
        super().__init__(*args, **options)

fsspec.register_implementation("heavy", Heavy)
recorder.Recorder.end.__defaults__ = (0.1,)
recorder._patience_s = 0.1
with GpuUtilMonitor(f"heavy://{sys.argv[1]}", report=False) as monitor:
    for _ in monitor.batches(range(20)):
        time.sleep(0.02)
"""


def test_a_store_whose_library_takes_long_to_import_has_not_been_silent(tmp_path):
    done = ran(sys.executable, "-c", IMPORTED, tmp_path, timeout=60)
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "ended" and recording.step_count == STEPS, done.stderr


POOLED = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import fsspec
from fsspec.implementations.local import LocalFileSystem
from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.recorder import recorder

class Pooled(LocalFileSystem):
    protocol = "pooled"
    def _open(self, path, mode="rb", **options):  # as object stores look names up: in a pool
        time.sleep(0.1)
        return ThreadPoolExecutor(1).submit(super()._open, path, mode, **options).result()
    def mv(self, one, other, **options):
        return ThreadPoolExecutor(1).submit(super().mv, one, other, **options).result()

fsspec.register_implementation("pooled", Pooled)
recorder.Recorder.end.__defaults__ = (0.05,)

def train(log_dir, steps):
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for _ in monitor.batches(range(steps)):
            time.sleep(0.01)
        if sys.argv[2] == "left":
            raise SystemExit("left")

if sys.argv[2] == "another thread":  # which lives longer than the main thread, and its pools
    threading.Thread(target=train, args=(sys.argv[1], 100)).start()
    time.sleep(0.5)
else:
    train(f"pooled://{sys.argv[1]}", 20)
"""


@pytest.mark.parametrize("how", ["over", "left", "another thread"])
def test_an_object_store_gets_the_end_while_the_process_ends(how, tmp_path):
    """Thread pools take no more work once the interpreter has begun to end its threads."""
    done = ran(sys.executable, "-c", POOLED, tmp_path, how, ends=1 if how == "left" else 0, timeout=60)
    assert "shutdown" not in done.stderr, done.stderr
    (recording,) = read_recordings(tmp_path)
    steps = 100 if how == "another thread" else STEPS
    assert recording.status == ("interrupted" if how == "left" else "ended"), done.stderr
    assert len(recording.steps["step"]) == steps


# ---- storage that hangs, fails or goes away in between ------------------------------------------


def hot_loop(folder, seconds: float, then=lambda recorder: None):
    """Return the recorder of a loop whose steps only let other threads run, and their number."""
    until = time.perf_counter() + seconds
    with GpuUtilMonitor(folder, report=False) as monitor:
        for steps in monitor.batches(itertools.count(1)):  # noqa: B007
            time.sleep(0)
            if time.perf_counter() > until:
                break
        recorded = monitor._recorder
        then(recorded)
        return recorded, steps


@pytest.mark.timed  # how far the recorder's thread keeps up with a hot loop
def test_rows_that_cannot_be_written_stay_in_bounds(tmp_path, hangs, monkeypatch, caplog):
    """They are judged all the same; the oldest ones are dropped, and counted."""
    monkeypatch.setattr(writer, "MAX_WAITING_ROWS", 1000)
    monkeypatch.setattr(outputs, "SILENT_S", 1.0)
    queued = []
    recorded, steps = hot_loop(tmp_path, 3.0, lambda one: queued.append(len(one.timeline.queue)))
    waiting = recorded._outputs._writer._new_count["tables", "steps"]
    assert steps > 12_000 and queued[0] < steps / 2 and waiting <= 1000
    assert f"{tmp_path} has not answered for 1 s" in caplog.text
    assert recorded._judged.wait(20)
    assert recorded.run["steps"] == pytest.approx(steps, abs=1)
    hangs.set()
    recording = newest(tmp_path, "ended")
    assert recording.step_count == recorded.run["steps"]
    assert recording.account["time_s"] == pytest.approx(recorded.run["time_s"])
    missing = recording.step_count - len(recording.steps["step"])
    assert 0 < missing <= recording.facts["dropped_rows"]
    assert not [one for one in recording.facts["unavailable"] if "writing" in one["source"]]


def test_steps_that_come_too_fast_for_the_recorder_stay_in_bounds(tmp_path, monkeypatch, caplog):
    """Of the surplus a count and a name for the time remain: no verdict is drawn from it."""
    add = Assembler.add

    def slow(self, items, last=False):
        time.sleep(0.2)
        return add(self, items, last)

    monkeypatch.setattr(Assembler, "add", slow)
    monkeypatch.setattr(intake, "MOST_ITEMS", 1000)
    monkeypatch.setattr(intake, "MOST_QUEUED", 1000)
    flush_often(monkeypatch)
    queued = []
    recorded, steps = hot_loop(tmp_path, 3.0, lambda one: queued.append(len(one.timeline.queue)))
    assert queued[0] < steps * 2 / 3
    assert recorded._judged.wait(20)
    recording = newest(tmp_path, "ended")
    assert recording.step_count == recorded.run["steps"] == pytest.approx(steps, abs=1)
    dropped = recording.facts["dropped_rows"]
    assert len(recording.steps["step"]) == recording.step_count - dropped
    assert recording.steps["step"][-1] == recording.step_count - 1
    said = f"{dropped:,} of {recording.step_count:,} steps have none"
    assert said in caplog.text and said in str(recording.facts["unavailable"])
    assert recorded.run["findings"] == recorded.run["spans"] == []
    assert "in steps that came too fast to be recorded" in recorded.run["verdict"]
    other = np.sum(recording.phases["self_ns"][recording.phases["account"] == "other"]) / 1e9
    assert other > 0.5 and recording.account["time_s"]["other"] == pytest.approx(other, abs=0.5)


def test_storage_that_hangs_is_waited_for_once_a_process(tmp_path, hangs, monkeypatch):
    monkeypatch.setattr(recorder.Recorder.end, "__defaults__", (1.0,))
    monkeypatch.setattr(recorder, "_patience_s", 1.0)
    monkeypatch.setattr(recorder, "KNOWN_S", 0.1)
    took = [recorded_loop(tmp_path / str(number)) for number in (0, 0, 1, 2)]
    assert took[0] > 0.8, "it might have been slow"
    assert max(took[1:]) < 0.6, took
    hangs.set()


def test_a_store_that_fails_at_first_gets_the_whole_recording(tmp_path, monkeypatch, caplog):
    began, make = time.monotonic(), LocalStorage.make_folder

    def failing(self, path):
        if time.monotonic() < began + 0.4:
            raise OSError(errno.EHOSTDOWN, "Host is down")
        make(self, path)

    monkeypatch.setattr(LocalStorage, "make_folder", failing)
    monkeypatch.setattr(writer, "MAX_WAITING_ROWS", 1 << 24)  # these steps do nothing
    flush_often(monkeypatch)
    _, steps = hot_loop(tmp_path, 0.8)
    recording = newest(tmp_path, "ended")
    assert "Host is down" in caplog.text
    assert len(recording.steps["step"]) == pytest.approx(steps, abs=1)
    assert not [one for one in recording.facts["unavailable"] if "writing" in one["source"]]


def test_one_failed_write_does_not_end_the_scalars(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flush, failed = ScalarWriter.flush, []

    def failing(self):
        if len(failed) < 2:
            failed.append(self)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        flush(self)

    monkeypatch.setattr(ScalarWriter, "flush", failing)
    flush_often(monkeypatch)
    with GpuUtilMonitor(tmp_path, report=False, scalar_freq=1) as monitor:
        for _ in monitor.batches(range(STEPS)):
            time.sleep(0.02)
    newest(tmp_path, "ended")
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    points = [event.step for event in events.Tensors("gpu_util/step_time_ms")]
    assert len(failed) == 2 and points == list(range(STEPS))


def test_a_log_directory_removed_in_mid_training_is_made_anew(tmp_path, caplog, monkeypatch):
    flush_often(monkeypatch)
    log_dir = tmp_path / "logs"
    with GpuUtilMonitor(log_dir, report=False, scalar_freq=1) as monitor:
        for batch in monitor.batches(range(40)):
            time.sleep(0.01)
            if batch == 20:
                wait_until(lambda: log_dir.exists() and [one for one in read_recordings(log_dir) if one.step_count])
                shutil.rmtree(log_dir)
                wait_until(log_dir.exists)
    recording = newest(log_dir, "ended")
    assert "was removed during training" in caplog.text and "may write" not in caplog.text
    assert caplog.text.count(str(log_dir)) <= 2
    assert recording.step_count == 40 and len(recording.steps["step"]) == 40, "nothing was sealed"
    assert any("removed" in one["reason"] for one in recording.facts["unavailable"])
    (events,) = log_dir.glob("events.*")
    assert b"gpu_util/recording" in events.read_bytes(), "the tab appears"


FORKED = """
import os, sys, time
from gpu_util_callback import GpuUtilMonitor
with GpuUtilMonitor(sys.argv[1]) as monitor:
    for batch in monitor.batches(range(30)):
        time.sleep(0.02)
        if batch == 10 and not (child := os.fork()):
            break
    start = time.perf_counter()
if child:
    os.waitpid(child, 0)
else:
    print(f"left after {time.perf_counter() - start:.3f} s", file=sys.stderr, flush=True)
    os._exit(0)
"""


def test_a_forked_child_leaves_the_recording_to_its_parent(tmp_path):
    done = ran(sys.executable, "-c", FORKED, tmp_path, timeout=60)
    assert float(done.stderr.split("left after ")[1].split()[0]) < 0.5, done.stderr
    assert "still being written" not in done.stderr and done.stdout.count("gpu-util:") == 1
    (recording,) = read_recordings(tmp_path)
    assert recording.status == "ended" and len(recording.steps["step"]) == 30
