"""Faults of machine, storage and streams: training neither waits nor fails, and no row is lost."""

from __future__ import annotations

import errno
import logging
import threading
import time

import keras
import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, Raise, traced
from waiting import flush_often, newest

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recorder import messages, recorder
from gpu_util_callback.recording import RecordingWriter
from gpu_util_callback.recording.storage import LocalStorage
from gpu_util_callback.steps.assemble import Assembler
from gpu_util_callback.words import HOST_TIME

pytestmark = pytest.mark.real_clock("ends and hangs within seconds")

STEPS = 40
X = np.zeros((BATCH * STEPS, WIDTH), np.float32)


class TakeTurns(keras.callbacks.Callback):
    """Gives the recorder time for a flush in the middle, and times the end of the fit."""

    ended = 0.0

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEPS // 2:
            time.sleep(0.3)

    def on_train_end(self, logs=None):
        self.ended = time.perf_counter()


def fit(callback, *others) -> float:
    """Return how long the end of the fit took, in seconds: our own, which comes last."""
    turns = TakeTurns()
    traced().fit(X, X[:, :1], batch_size=BATCH, verbose=0, callbacks=[turns, *others, callback])
    return time.perf_counter() - turns.ended


@pytest.fixture(autouse=True)
def often(heard, monkeypatch):
    flush_often(monkeypatch)


# ---- messages -------------------------------------------------------------------------------


class Faulty(logging.Handler):
    def __init__(self, fault):
        super().__init__()
        self.emit = lambda record: fault()


def raising(error):
    def fault():
        raise error

    return fault


@pytest.fixture
def blocked():
    event = threading.Event()
    yield lambda: event.wait(60)
    event.set()


@pytest.fixture(params=["blocks", "is closed", "has no memory", "exits"])
def fault(request, blocked):
    return {
        "blocks": blocked,
        "is closed": raising(ValueError("I/O operation on closed file")),
        "has no memory": raising(MemoryError()),
        "exits": raising(SystemExit()),
    }[request.param]


def test_a_log_that_fails_loses_no_row_and_holds_up_nobody(fault, tmp_path, monkeypatch):
    """A pipe that nobody reads, a closed stream, a handler of the user's that raises."""
    write, failed = LocalStorage.write, []

    def failing(self, path, data):
        if "segment-" in path and not failed:
            failed.append(path)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")  # reported by the recorder's thread
        write(self, path, data)

    monkeypatch.setattr(LocalStorage, "write", failing)
    ours, handler = GpuUtilCallback(str(tmp_path), report=False), Faulty(fault)
    logger = logging.getLogger("gpu_util_callback")
    logger.addHandler(handler)
    try:
        start = time.perf_counter()
        ended_s = fit(ours, ours)  # listed twice: reported by the training thread
        assert time.perf_counter() - start < 20 and ended_s < 2
    finally:
        logger.removeHandler(handler)
    assert failed
    assert len(newest(tmp_path, "ended").steps["step"]) == STEPS


def test_a_stream_that_nobody_reads_holds_up_no_verdict(tmp_path, monkeypatch, blocked):
    class Full:
        write = flush = staticmethod(lambda *_: blocked())

    monkeypatch.setattr("sys.stdout", Full())
    assert fit(GpuUtilCallback(str(tmp_path))) < 2


# ---- memory ---------------------------------------------------------------------------------


def test_rows_that_found_no_memory_are_made_the_next_time(tmp_path, monkeypatch):
    blocks, short = Assembler._block, [MemoryError(), None, MemoryError()]

    def block(self, *arguments):
        if short and (error := short.pop()) is not None:
            raise error
        return blocks(self, *arguments)

    monkeypatch.setattr(Assembler, "_block", block)
    callback = GpuUtilCallback(str(tmp_path), report=False)
    fit(callback)
    assert not short and callback.summary()["steps"] == STEPS
    assert newest(tmp_path, "ended").steps["step"].tolist() == list(range(STEPS))


def test_there_is_no_verdict_without_all_rows(tmp_path, monkeypatch, capsys):
    """An account without them says that the time passed between the steps."""
    append = RecordingWriter.append

    def failing(self, table, columns):
        if table == "steps" and len(columns["step"]) > 1:
            raise RuntimeError("an error of ours")
        append(self, table, columns)

    monkeypatch.setattr(RecordingWriter, "append", failing)
    callback = GpuUtilCallback(str(tmp_path))
    fit(callback)
    captured = capsys.readouterr()
    assert "gpu-util" not in captured.out, captured.out
    assert callback.summary()["findings"] is None
    assert not read_recordings(tmp_path)[0].stored


# ---- storage --------------------------------------------------------------------------------


def test_verdict_and_summary_come_from_memory(tmp_path, monkeypatch, capsys, blocked):
    """A mount that answers no longer, once training is under way."""

    class Hang(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == STEPS - 1:
                for name in ("read", "write", "names", "folders", "stamp", "exists"):
                    monkeypatch.setattr(LocalStorage, name, lambda *_: blocked())

    # Earlier fits of this process have a part in the verdict, which is not said each time.
    monkeypatch.setattr(recorder, "_process", type(recorder._process)())
    monkeypatch.setattr(messages, "_fits_at_last_verdict", {})
    # The verdict needs less, but on a machine that others load; the files get all of it in vain.
    monkeypatch.setattr(recorder, "_patience_s", 1.0)
    monkeypatch.setattr(recorder, "_storage_hangs", lambda: False)  # another test's may
    callback = GpuUtilCallback(str(tmp_path))
    assert fit(callback, Hang()) < 1 + 1.5
    messages.drain(5)
    start = time.perf_counter()
    summary = callback.summary()
    assert time.perf_counter() - start < 0.5
    assert (summary["status"], summary["steps"]) == ("ended", STEPS)
    assert summary["verdict"] in " ".join(capsys.readouterr().out.split())
    account = [summary[f"{name}_pct"] for name in HOST_TIME]
    assert sum(account) == pytest.approx(100, abs=0.1)


def test_a_summary_where_an_error_is_handled(tmp_path):
    callback = GpuUtilCallback(str(tmp_path), report=False)
    try:
        fit(callback, Raise(ZeroDivisionError(), 9))
    except ZeroDivisionError:
        summary = callback.summary()
    assert summary["status"] == "interrupted"
    assert summary["steps"] == len(newest(tmp_path, "interrupted").steps["step"]) >= 9
