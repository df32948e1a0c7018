"""Batches that a loop fetches by hand within its steps: a wait for input, named with its line."""

import itertools
import threading
import time

import pytest
from generated_runs import GPU, Generated

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.steps.dispatch import DispatchWatch, takes_next

torch = pytest.importorskip("torch")


class Rows(torch.utils.data.Dataset):
    """Rows each of which takes a little while, or stands still until it may go on."""

    def __init__(self, wait=lambda: time.sleep(0.001)):
        self.wait = wait

    def __len__(self):
        return 160

    def __getitem__(self, index):
        self.wait()
        return torch.full((4,), float(index))


def loaded(wait):
    return torch.utils.data.DataLoader(Rows(wait), batch_size=16)


def made(wait):
    while True:
        wait()
        yield torch.zeros(16, 4)


def endless(loader):
    while True:
        yield from loader


class Batches:
    def __init__(self, wait):
        self.wait = wait

    def __next__(self):
        self.wait()
        return torch.zeros(16, 4)


def piped(wait):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.range(64).map(lambda x: tf.py_function(lambda y: wait() or y, [x], x.dtype))


def step(fetch):
    return fetch()


SOURCES = {
    "iter": (lambda wait: iter(loaded(wait)), "a DataLoader"),
    "cycle": (lambda wait: itertools.cycle(loaded(wait)), "a DataLoader"),
    "endless": (lambda wait: endless(loaded(wait)), "a DataLoader"),
    "generator": (made, "made"),
    "iterator": (Batches, "Batches.__next__"),
    "tf.data": (lambda wait: iter(piped(wait)), "a tf.data.Dataset"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_who_delivers_the_batches_of_a_step_is_told_by_its_stack(name):
    inside, go_on = threading.Event(), threading.Event()

    def wait():
        inside.set()
        while not go_on.wait(0.01):
            pass

    make, source = SOURCES[name]
    batches = make(wait)
    thread = threading.Thread(target=step, args=(lambda: next(batches),))
    thread.start()
    assert inside.wait(30)
    watch = DispatchWatch("torch", thread.ident, lambda: True)
    watch.look()
    go_on.set()
    thread.join()
    found = watch.python_in_steps()
    assert (found["fetches"], found["fetches_from"], found["aside"]) == (1, source, 0)
    assert "test_fetches_in_steps.py, line" in found["fetches_at"]


def lines(it, heads, model, parts):
    x = next(it)
    for head in heads(x):
        head(x)
    y = model(next(it))
    loss = sum(parts())
    return x, y, loss


def test_a_generator_is_fetched_from_where_a_line_takes_its_next():
    first = lines.__code__.co_firstlineno
    assert [line for line in range(1, 6) if takes_next(__file__, first + line)] == [1, 4]


@pytest.mark.timed
def test_a_loop_that_waits_for_its_loader_is_told_to_let_workers_make_batches(tmp_path):
    """Seen: "Nothing held up training: 100 % in steps" of a loop that waited for a DataLoader 57 % of the time."""
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16)
    model, batches = torch.nn.Linear(4, 1), iter(loader)
    with GpuUtilMonitor(tmp_path, framework="torch", report=False, trace="off") as monitor:
        for _ in range(90):
            with monitor.step():
                try:
                    x = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    x = next(batches)
                model(x).mean().backward()
    [recording] = read_recordings(tmp_path)
    found = diagnose(recording)
    assert found["verdict"].startswith("Training waits for its input within the steps")
    [span] = [one for one in found["spans"] if one["id"].startswith("host_stall:fetching")]
    assert "test_fetches_in_steps.py, line" in span["advice"]["text"] and "num_workers" in span["advice"]["code"]
    assert span["advice"]["question"] and not span["saves_s"]


def looped(source, share=0.6, **steps) -> Generated:
    calls = {"samples": 100, "fetches": share, "fetches_at": "train (train.py, line 9)", "fetches_from": source}
    fit = {"loop": "custom", "python_in_steps": calls}
    run = Generated(seed=3, framework={"name": "torch", "backend": "torch"}, fit=fit, gpus=steps.pop("gpus", []))
    run.steps(300, step_ms=20, **steps)
    return run


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a DataLoader", "num_workers=4"),
        ("a tf.data.Dataset", "prefetch"),
        ("worker processes", "batches("),
        ("rows", "batches("),
    ],
)
def test_the_remedy_is_that_of_what_delivers(source, line):
    [span] = looped(source).findings("host_stall")
    assert line in span["advice"]["code"] and span["lost_s"] == pytest.approx(3.6, rel=0.02)


@pytest.mark.parametrize("source", ["a DataLoader", "rows"])
def test_a_trainers_step_that_fetches_is_not_told_of_a_monitor(source):
    """As `gpu-util run` records it: `next(self.others)` in `training_step`, where no program makes a monitor."""
    run = looped(source)
    run.facts["fit"] |= {"trainer": "lightning"}
    [span] = run.findings("host_stall")
    assert "monitor" not in span["advice"]["text"] + span["advice"]["code"]
    assert ("num_workers" in span["advice"]["code"]) is (source == "a DataLoader")


@pytest.mark.parametrize("run", [looped("a DataLoader", 0.15), looped("a DataLoader", gpus=[GPU], gpu_share=0.97)])
def test_short_waits_and_those_that_a_gpu_does_not_see_are_no_finding(run):
    assert not run.findings("host_stall")
