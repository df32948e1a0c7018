"""A dataset over which a loop begins a pass for each step, and loops that begin few."""

import itertools
import time

import pytest

from gpu_util_callback import GpuUtilMonitor, read_recordings
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.steps.dispatch import begins_pass

torch = pytest.importorskip("torch")

ROWS, STEPS = 1_000_000, 80


def helped(loader):
    for batch in loader:  # noqa: B007 (the loop of those who want one batch)
        break
    return batch[0]


def trained(folder, fetch, work=1, steps=STEPS):
    """Train on what `fetch` gives within the steps; return the findings of slow steps by their ids."""
    data = torch.utils.data.TensorDataset(torch.zeros(ROWS, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with GpuUtilMonitor(folder, framework="torch", report=False) as monitor:
        for _ in range(steps):
            with monitor.step():
                x = fetch(loader)
                for _ in range(work):
                    model(x).mean().backward()
                    optimizer.step()
    [recording] = read_recordings(folder)
    findings = diagnose(recording)["findings"]
    return {finding["id"]: finding for finding in findings if finding["cause"] == "slow_steps"}


@pytest.mark.timed
@pytest.mark.parametrize("fetch", [lambda loader: next(iter(loader))[0], helped], ids=["next", "break"])
def test_a_pass_in_each_step_is_named_with_its_line(tmp_path, fetch):
    finding = trained(tmp_path, fetch)["slow_steps:begin_of_a_pass"]
    assert "?" in finding["advice"]["text"] and "test_passes_in_steps.py, line" in finding["advice"]["text"]
    assert finding["evidence"]["begin_pct"] > 25 and "endless(loader)" in finding["advice"]["code"]


@pytest.mark.timed
def test_one_iterator_within_the_steps_is_no_finding(tmp_path):
    kept = []

    def fetch(loader):
        kept[:] = kept or [itertools.cycle(loader)]
        return next(kept[0])[0]

    assert "slow_steps:begin_of_a_pass" not in trained(tmp_path, fetch, work=10)


@pytest.mark.timed
def test_passes_that_a_few_steps_begin_are_no_finding(tmp_path):
    """As a validation within every tenth step does: together they take as much of the time."""
    fetched = itertools.count()
    batch = torch.zeros(64, 4)

    def fetch(loader):
        return next(iter(loader))[0] if next(fetched) % 10 == 0 else batch

    assert "slow_steps:begin_of_a_pass" not in trained(tmp_path, fetch, steps=800)


def first_of(dataset):
    return next(iter(dataset))


def of_dataset(dataset):
    for batch in dataset.take(1):  # noqa: B007 (the loop of those who want one batch)
        pass
    return batch


@pytest.mark.timed
@pytest.mark.parametrize("fetch", [first_of, of_dataset], ids=["next", "take"])
def test_a_pass_over_a_tensorflow_dataset_is_named_with_its_line(tmp_path, fetch):
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.range(100_000).shuffle(8000).batch(8)
    with GpuUtilMonitor(tmp_path, framework="tensorflow", report=False) as monitor:
        until_s = time.monotonic() + 2  # for samples enough, however quick the steps are
        while time.monotonic() < until_s:
            with monitor.step():
                batch = fetch(dataset)
    [recording] = read_recordings(tmp_path)
    [finding] = [found for found in diagnose(recording)["findings"] if found["cause"] == "slow_steps"]
    assert batch.shape == (8,) and finding["id"] == "slow_steps:begin_of_a_pass" and not finding["lost_s"]
    assert "test_passes_in_steps.py, line" in finding["advice"]["text"] and "?" in finding["advice"]["text"]


def lines(step, data, batches, config):
    x, y = next(iter(data))
    for batch in data:  # noqa: B007
        break
    batch = next(data.as_numpy_iterator())["x"]
    for batch in itertools.islice(data, 1):
        step(batch)
    for batch in data:
        if batch > 3:
            break
    x = next(batches)
    loss = step(next(iter(data)))
    first = config.take(1)
    return next(iter(data)), x, y, loss, first


def test_lines_that_begin_a_pass_are_told_by_their_source():
    first = lines.__code__.co_firstlineno
    begin = [line for line in range(1, 14) if begins_pass(lines.__code__, first + line)]
    assert begin == [1, 2, 4, 5]
