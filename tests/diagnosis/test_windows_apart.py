"""Profiler windows that do not lie evenly: each stands for the steps around it."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings

STEPS, STEP_MS, SHARE = 12_000, 20, 0.5


def ever_rarer(first: int, end: int) -> Generated:
    """Synchronizations in steps [first, end); windows as the recorder takes them."""
    run = Generated(seed=2, gpus=[GPU])
    windows = {int(50 * 1.1**k) for k in range(60)} - {first, end}
    for stop in sorted({*(x for x in windows if x < STEPS), first, end, STEPS} - {0}):
        held = first <= run.step < end
        if run.step in windows:
            run.trace(6, STEP_MS, **({"idle_sync": SHARE} if held else {}))
        run.steps(stop - run.step, step_ms=STEP_MS, gpu_share=1 - SHARE if held else 0.98)
    return run


def test_a_gpu_with_a_few_kernels_does_not_halve_what_the_other_shows():
    run = Generated(seed=2, gpus=[GPU, GPU | {"index": 1, "nvml_index": 1}])
    for _ in range(3):
        run.steps(200, step_ms=STEP_MS, gpu_share=1 - SHARE)
        run.trace(6, STEP_MS, idle_sync=SHARE)
        run.trace(6, STEP_MS, gpu=1, other=0.99)
    [finding] = run.findings("sync_bound")
    assert finding["evidence"]["idle_sync_pct"] == pytest.approx(100 * SHARE, abs=1)
    assert finding["gpus"] == [0]


@pytest.mark.parametrize("first, end", [(0, 1200), (6000, STEPS), (2000, 5000), (0, STEPS)])
def test_what_was_lost_is_that_of_the_steps_windows_stand_for(first, end):
    [finding] = ever_rarer(first, end).findings()
    assert finding["cause"] == "sync_bound"
    lost = (end - first) * STEP_MS / 1000 * SHARE
    assert finding["lost_s"] == pytest.approx(lost, rel=0.15)
    if end - first == STEPS:
        assert "start_step" not in finding
    else:
        assert finding["start_step"] == pytest.approx(first, abs=0.06 * STEPS)
        assert finding["end_step"] == pytest.approx(end, abs=0.06 * STEPS)


@pytest.mark.parametrize("alone", [0, 5, 11])
def test_a_window_that_differs_alone_is_no_state(alone):
    run = Generated(seed=3, gpus=[GPU])
    for part in range(12):
        run.trace(6, STEP_MS, **({"idle_sync": 0.9} if part == alone else {}))
        run.steps(300, step_ms=STEP_MS)
    assert run.findings() == []
    run = Generated(seed=3, gpus=[GPU])
    for part in range(12):
        run.trace(6, STEP_MS, **({} if part == alone else {"idle_sync": SHARE}))
        run.steps(300, step_ms=STEP_MS, gpu_share=1 - SHARE)
    [finding] = run.findings()
    assert "start_step" not in finding


def test_the_gpu_account_weighs_windows_alike(tmp_path):
    write(ever_rarer(0, 1200), tmp_path)
    [recording] = read_recordings(tmp_path)
    account = run_report(recording)["gpu_time_est"]["0"]
    assert account["basis"] == "windows"
    assert account["idle_sync"] == pytest.approx(1200 * STEP_MS / 1000 * SHARE, rel=0.15)
