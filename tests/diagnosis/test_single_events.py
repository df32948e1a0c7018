"""An event that came once is no state of a run: it is named only where it holds a good part of it."""

import numpy as np
import pytest
from advised_runs import DATALOADER, run_of
from generated_runs import Generated

NUMPY = {"input_kind": "numpy"}


def epochs(kind: str, name: str, account: str, seconds: list[float], steps: int = 200) -> Generated:
    """Epochs with one phase each, of these seconds, on a CPU."""
    run = run_of(gpus=[], epochs=len(seconds), steps_per_epoch=steps, **NUMPY)
    for number, phase_s in enumerate(seconds, 1):
        with run.epoch():
            run.phase(kind, phase_s, name=name.format(number), account=account)
            run.steps(steps, step_ms=10)
    return run


def set_ups(*seconds: float) -> Generated:
    return epochs("input_setup", "epoch {}: iterator", "input_wait", list(seconds))


def validations(*seconds: float) -> Generated:
    return epochs("validation", "validation", "validation", list(seconds))


def hooks(*seconds: float) -> Generated:
    return epochs("callback", "Plot.on_epoch_end", "callbacks", list(seconds))


def long_fetch(seconds: float, at: int = 500, steps: int = 1000) -> Generated:
    """Return a run with one fetch of a page cache that is cold."""
    run = run_of(gpus=[], epochs=1, steps_per_epoch=steps, **DATALOADER)
    run.steps(steps, step_ms=10, wait_ms=np.where(np.arange(steps) == at, 1e3 * seconds, 0.0))
    return run


@pytest.mark.parametrize(
    "run",
    [
        set_ups(0.2, 1.2, 0.02, 0.02, 0.02, 0.02),
        # Seen in a healthy fit of arrays on TensorFlow: two of six iterators took over a second to end.
        set_ups(0.02, 0.02, 0.02, 1.1, 0.02, 1.2),
        validations(1.2, 0.1),  # the first one fills the caches
        validations(0.1, 1.2, 0.1),
        hooks(1.2, 0.02),
        long_fetch(1.5),
        long_fetch(1.5, at=30),
    ],
)
def test_what_came_once_and_is_small_is_no_verdict(run):
    result = run.diagnose(ended=True)
    assert not result["findings"] and not result["spans"], result["verdict"]


@pytest.mark.parametrize("run", [long_fetch(6.0), long_fetch(8.0, at=900)])
def test_what_came_once_and_is_a_good_part_of_the_run_is_named_without_a_promise(run):
    [finding] = run.diagnose(ended=True)["spans"]
    assert "may not come again" in finding["advice"]["text"] and not finding["saves_s"]


def test_a_long_change_of_epochs_is_in_the_verdict_without_a_finding():
    result = set_ups(0.02, 0.02, 6.0, 0.02).diagnose(ended=True)
    assert not result["spans"] and "43 % waiting for input" in result["verdict"]


@pytest.mark.parametrize("run", [set_ups(*[0.4] * 6), validations(1.5, 1.3), hooks(0.5, 0.6)])
def test_what_comes_each_time_is_a_state_from_the_second_on(run):
    assert run.diagnose(ended=True)["spans"]
