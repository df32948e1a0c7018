"""Whether a DataLoader's batches were finished when the loop asked for them."""

import multiprocessing
import queue
import select

import pytest
from packages import need
from processes import shared

from gpu_util_callback.backends.input_watch import finished_batches
from gpu_util_callback.steps.rows import HandedOver


@pytest.fixture(scope="module")
def found():
    need("torch")
    return shared("handed_program.py", KERAS_BACKEND="torch")


# Of 32 batches the first one cannot be finished: its worker starts.
@pytest.mark.parametrize(
    "run, ready_pct, known",
    [
        ("loop/late", 0.0, False),
        ("loop/ready", 96.9, True),
        ("loop/turns", 50.0, True),  # what lies in the queue is another batch
        ("fit/late", 0.0, False),
        ("fit/ready", 96.9, True),
    ],
)
def test_batches_of_workers(found, run, ready_pct, known):
    fit = found[run]["fit"]
    assert found[run]["steps"] == 32
    # The first of 32 is ready, too, where a full machine lets the workers go first.
    assert fit["input_ready_pct"] in ({ready_pct, 100.0} if ready_pct == 96.9 else {ready_pct})
    assert (fit["input_handover_ms"] is not None) == known
    assert not known or fit["input_handover_ms"] > 0


def test_without_workers_nothing_is_said_of_it(found):
    assert "input_ready_pct" not in found["loop/none"]["fit"]


class _MultiProcessingDataLoaderIter:
    """What torch keeps, of a loader that pins memory: a thread queues batches again."""

    def __init__(self):
        self._task_info = {0: (0,), 1: (0,)}
        self._rcvd_idx = 0
        self._worker_result_queue = multiprocessing.SimpleQueue()
        self._data_queue = queue.Queue()


@pytest.mark.parametrize("where, ready", [(None, 0), ("_data_queue", 100), ("_worker_result_queue", 100)])
def test_batches_on_their_way_through_the_pinning_thread_are_finished(where, ready):
    batches, told = _MultiProcessingDataLoaderIter(), HandedOver()
    if where:
        getattr(batches, where).put((0, "a batch"))
    looks = finished_batches(batches, told)
    looks.begin()
    looks.end(2_000_000)
    assert told.facts() == {"input_ready_pct": ready, "input_handover_ms": None}


def test_of_a_long_run_a_part_is_looked_at():
    batches, told = _MultiProcessingDataLoaderIter(), HandedOver()
    batches._data_queue.put((0, "a batch"))
    looks = finished_batches(batches, told)
    for _ in range(3000):
        looks.begin()
        looks.end(2_000_000)
    assert 300 < told.looked < 600
    assert told.facts() == {"input_ready_pct": 100.0, "input_handover_ms": 2.0}


def test_what_has_moved_is_unknown():
    told = HandedOver()
    batches = _MultiProcessingDataLoaderIter()
    del batches._worker_result_queue
    assert finished_batches(batches, told) is None
    assert finished_batches(iter([1, 2]), told) is None
    batches = _MultiProcessingDataLoaderIter()
    looks = finished_batches(batches, told)
    del batches._task_info
    for _ in range(3):
        looks.begin()
        looks.end(1)
    assert told.facts() == {}


def test_a_look_gives_nobody_pythons_lock(monkeypatch):
    """`select.poll` would: then the look of a busy program takes as long as others please."""
    monkeypatch.setattr(select, "poll", None)
    batches, told = _MultiProcessingDataLoaderIter(), HandedOver()
    looks = finished_batches(batches, told)
    looks.begin()
    looks.end(1)
    batches._worker_result_queue.put((0, "a batch"))
    looks.begin()
    looks.end(1)
    assert told.facts()["input_ready_pct"] == 50
