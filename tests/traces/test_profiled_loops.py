"""Traces that the frameworks' own profilers write of loops whose number of steps is known."""

from pathlib import Path

import pytest
from fork_server import python
from packages import need
from programs import ran

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.steps import find_steps


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def recorded(request, tmp_path_factory):
    """The traces of one framework."""
    need(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    program = Path(__file__).with_name("profiled_program.py")
    ran(*python(request.param), program, request.param, folder)
    return sorted(folder.iterdir())


@pytest.mark.heavy
def test_the_fetch_that_finds_the_end_of_the_data_is_no_step(recorded):
    counted, taken = {}, {}
    for path in recorded:
        name, _, count = path.name.split(".")[0].rpartition("-")
        trace = read_trace(path)
        counted[name], taken[name] = len(find_steps(trace.processes[0], trace.names)), int(count)
    assert counted == taken and len(taken) >= 3
