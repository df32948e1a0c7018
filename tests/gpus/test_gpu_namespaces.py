"""Who computes on a GPU, where process ids do not say it plainly: containers and sandboxes."""

import math
import os

import pytest
from nvml import GIB, NOBODY, Scenario

from gpu_util_callback.gpus import _reader
from gpu_util_callback.gpus._reader import Processes


@pytest.fixture
def container(monkeypatch):
    """This process is not in the machine's first pid namespace."""
    monkeypatch.setattr(_reader, "host_pids", lambda: False)


@pytest.fixture
def neighbour():
    """The id of another process of this namespace: no child of this one, which would be ours."""
    return os.getppid()


def row_of(step, scenario, expected=True, reads=1):
    """The columns after some reads: ({column: value}, {source: reason})."""
    stepped = step(scenario)
    processes = Processes(stepped.gate, stepped.gpu, "gpu0", expected)
    for second in range(reads):
        stepped.library.set_time(second)
        values = processes.read()
    return dict(zip(Processes.columns, values, strict=True)), stepped.reasons()


def test_the_hosts_ids_in_a_container_are_nobodys(step, container):
    """Drivers before R530: lists and utilization hold the host's ids, ours by chance among them."""
    scenario = Scenario()
    scenario.gpu("h100").process(os.getpid(), 6 * GIB, sm=90).process(NOBODY, GIB)
    row, reasons = row_of(step, scenario)
    assert math.isnan(row["memory_process_bytes"])
    assert math.isnan(row["memory_other_bytes"])
    assert math.isnan(row["processes_other"])
    assert math.isnan(row["utilization_process_pct"])
    assert "container" in reasons["gpu0 process ids"]


def test_a_training_alone_in_a_container_is_no_competitor_of_its_own(step, container):
    """R560 in a container: the list holds our id, the utilization the host's for the same one."""
    scenario = Scenario()
    scenario.gpu("h100").process("self", 0).process(NOBODY, 1, kind="unlisted", sm=97)
    row, reasons = row_of(step, scenario)
    assert math.isnan(row["utilization_other_pct"])
    assert math.isnan(row["utilization_process_pct"])
    assert row["processes_other"] == 0
    assert math.isnan(row["memory_process_bytes"])  # 0 bytes under a context: not known
    assert "gpu0 process ids" not in reasons


def test_others_in_a_container_have_at_least_what_one_process_cannot(step, container, neighbour):
    scenario = Scenario()
    gpu = scenario.gpu("h100").process("self", 30 * GIB).process(neighbour, 4 * GIB)
    gpu.process(NOBODY, 1, kind="unlisted", sm=60).process(NOBODY + 1, 1, kind="unlisted", sm=35)
    row, reasons = row_of(step, scenario)
    assert (row["memory_process_bytes"], row["memory_other_bytes"]) == (30 * GIB, 4 * GIB)
    assert row["processes_other"] == 1
    assert row["utilization_other_pct"] == 35  # the busier one may be us
    assert math.isnan(row["utilization_process_pct"])
    assert "gpu0 process ids" not in reasons


def test_a_driver_that_translates_everything_is_believed(step, container, neighbour):
    scenario = Scenario()
    scenario.gpu("h100").process("self", 30 * GIB, sm=55).process(neighbour, 4 * GIB, sm=40)
    row, _ = row_of(step, scenario)
    assert (row["utilization_process_pct"], row["utilization_other_pct"]) == (55, 40)


@pytest.mark.parametrize("first", [True, False])
def test_a_sandbox_with_ids_of_its_own(step, monkeypatch, first):
    """The driver shows one busy process under an id we do not know; it is we who train."""
    monkeypatch.setattr(_reader, "host_pids", lambda: first)
    scenario = Scenario()
    scenario.gpu("h100").process(NOBODY, 100 * GIB, sm=99)
    row, reasons = row_of(step, scenario, reads=12)
    assert all(math.isnan(value) for value in row.values())
    assert "gpu0 process ids" in reasons


def test_before_the_framework_has_a_context_nobody_is_judged(step, monkeypatch):
    monkeypatch.setattr(_reader, "host_pids", lambda: True)
    scenario = Scenario()
    scenario.gpu("h100").process("self", GIB, sm=50, from_=3).process(NOBODY, GIB, sm=20)
    before, reasons = row_of(step, scenario, reads=2)
    assert math.isnan(before["processes_other"]) and not reasons
    after, reasons = row_of(step, scenario, reads=5)
    assert after["processes_other"] == 1 and after["utilization_other_pct"] == 20
    assert not reasons


def test_a_gpu_that_the_framework_does_not_use_shows_its_users(step, monkeypatch):
    monkeypatch.setattr(_reader, "host_pids", lambda: True)
    scenario = Scenario()
    scenario.gpu("h100").process(NOBODY, GIB, sm=20)
    row, _ = row_of(step, scenario, expected=False)
    assert (row["processes_other"], row["memory_other_bytes"]) == (1, GIB)
    assert (row["utilization_process_pct"], row["utilization_other_pct"]) == (0, 20)
