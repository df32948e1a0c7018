"""What TraceML's tests call creep or pressure is growth or pressure here, and nothing else is."""

import numpy as np
import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.diagnosis import Diagnosis
from tests.memory.traceml import CASES


def causes(first: float, last: float, total: float) -> set[str]:
    """The causes found where a GPU's live bytes go from `first` to `last` within 60 steps."""
    run = Generated(seed=4, gpus=[GPU | {"memory_total_bytes": int(total)}])
    for _ in range(6):
        begun = run.now
        run.steps(10, step_ms=2000)
        run.epoch(begun)
    times = np.arange(run.facts["started_ns"], run.now, 1_500_000_000)
    live = np.linspace(first, last, len(times))
    diagnosis = Diagnosis(run.facts)
    block = {"time_ns": times, "allocator_used_bytes": live, "allocator_peak_bytes": live}
    diagnosis.add(run.tables(), {**run.samples(), "gpu0/allocator": block})
    found = diagnosis.result(now_ns=run.now, ended=True)["findings"]
    return {one["cause"] for one in found} & {"memory_growth", "memory_pressure"}


def test_no_readings_are_no_verdict():
    """TraceML's case without data: both causes are unknown, neither is found nor ruled out."""
    run = Generated(seed=4, gpus=[GPU])
    run.steps(60, step_ms=2000)
    diagnosis = Diagnosis(run.facts)
    diagnosis.add(run.tables(), {})
    result = diagnosis.result(now_ns=run.now, ended=True)
    unknown = {one["cause"] for one in result["silent"]}
    assert {"memory_growth", "memory_pressure"} <= unknown
    assert not {one["cause"] for one in result["findings"]} & unknown


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    first, last, total, creep, full = CASES[name]
    wanted = ({"memory_growth"} if creep else set()) | ({"memory_pressure"} if full else set())
    assert causes(first, last, total) == wanted
