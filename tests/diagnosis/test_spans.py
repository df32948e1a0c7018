"""Where spans begin and end, and what makes none."""

import numpy as np
import pytest
from generated_runs import GPU, START_NS, Generated


def input_spans(run: Generated, **thresholds) -> list[dict]:
    found = run.diagnose({"input_bound": thresholds} if thresholds else None)
    return [span for span in found["spans"] if span["cause"] == "input_bound"]


@pytest.mark.parametrize("gpus", [[], [GPU]], ids=["no GPU", "GPU"])
@pytest.mark.parametrize("noise", [0.02, 0.3])
@pytest.mark.parametrize("wait_ms", [1, 4, 30])
@pytest.mark.parametrize("count", [60, 333, 4000])
def test_a_slow_third_is_one_span_with_exact_ends(count, wait_ms, noise, gpus):
    run = Generated(seed=count, noise=noise, gpus=gpus)
    run.steps(count, step_ms=8)
    first, end = run.steps(count, step_ms=8, wait_ms=wait_ms)
    run.steps(count, step_ms=8)
    [span] = input_spans(run, least_s=0)
    assert abs(span["start_step"] - first) <= 5
    assert abs(span["end_step"] - end) <= 5
    assert span["lost_s"] == pytest.approx(count * wait_ms / 1e3, rel=0.1)
    assert span["start_ns"] < span["end_ns"]


@pytest.mark.parametrize("place", ["start", "end", "all along"])
def test_spans_at_the_ends_of_a_run(place):
    run = Generated(seed=8)
    if place == "end":
        run.steps(400, step_ms=8)
    first, end = run.steps(400, step_ms=8, wait_ms=10)
    if place == "start":
        run.steps(400, step_ms=8)
    [span] = input_spans(run)
    assert (abs(span["start_step"] - first), abs(span["end_step"] - end)) <= (5, 5)


@pytest.mark.parametrize("period", [10, 60, 300])
def test_bursts_are_one_span(period):
    """A slow file every so often: most steps do not wait, the run still loses a third."""
    rng = np.random.default_rng(period)
    count = period * 40
    waits = np.zeros(count)
    waits[period // 2 :: period] = 8 * period * rng.uniform(0.4, 0.6, 40)
    run = Generated(seed=1)
    run.steps(count, step_ms=8)
    first, end = run.steps(count, step_ms=8, wait_ms=waits)
    run.steps(count, step_ms=8)
    [span] = input_spans(run)
    assert abs(span["start_step"] - first) <= period
    assert abs(span["end_step"] - end) <= period


@pytest.mark.parametrize(("outliers", "batches"), [(1, "one batch took 4.0 s"), (3, "3 batches took 2.0 s each")])
def test_single_outliers_are_no_state_of_the_steps_between(outliers, batches):
    """Those that cost much are named, where they are."""
    waits = np.zeros(1000)
    waits[100 :: 900 // outliers][:outliers] = 2000 if outliers > 1 else 4000
    run = Generated(seed=4)
    run.steps(1000, step_ms=8, wait_ms=waits)
    [span] = input_spans(run)
    assert span["title"] == f"Input-bound: {batches}"
    assert span["lost_s"] == pytest.approx(max(4, 2 * outliers), rel=0.01)
    assert span["end_step"] - span["start_step"] <= 600 * (outliers - 1) + 4


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_warm_up_is_no_span(seed):
    """However its waits are spread: a wide window must not make a span of 13 steps."""
    rng = np.random.default_rng(seed)
    run = Generated(seed=seed)
    run.steps(1, step_ms=250, wait_ms=2000, compile_ms=8000)
    run.steps(12, step_ms=250, wait_ms=rng.lognormal(6, 0.6, 12))
    run.steps(600, step_ms=250, wait_ms=6)
    assert input_spans(run) == []


@pytest.mark.parametrize("step_ms", [0.5, 2, 50])
def test_the_floor_of_get_next_is_no_wait(step_ms):
    """An instant dataset reads 0.07-0.15 ms: on 0.5 ms steps a fifth, and nobody waits."""
    run = Generated(seed=6)
    run.steps(3000, step_ms=step_ms)
    assert input_spans(run) == []


def test_three_percent_of_waiting_is_healthy():
    run = Generated(seed=7, noise=0.5)
    run.steps(3000, step_ms=20, wait_ms=0.6)
    assert input_spans(run) == []
    assert len(input_spans(run, wait_pct=1)) == 1


def test_waiting_while_the_gpu_is_busy_costs_nothing():
    """The host waits, but the GPU has work queued: nothing is lost."""
    run = Generated(seed=9, gpus=[GPU])
    run.steps(600, step_ms=8, wait_ms=8, gpu_in_wait=1.0)
    assert input_spans(run) == []
    run.facts["gpus"] = []
    assert input_spans(run) != []


def test_a_wait_counts_only_as_far_as_the_gpu_idled():
    run = Generated(seed=10, gpus=[GPU])
    run.steps(2000, step_ms=8, wait_ms=8, gpu_in_wait=0.5)
    [span] = input_spans(run)
    assert span["lost_s"] == pytest.approx(2000 * 0.004, rel=0.15)


def test_too_few_samples_say_nothing_about_the_gpu():
    """Fewer than three: the wait itself counts, and the span is called an estimate."""
    run = Generated(seed=11, gpus=[GPU])
    run.steps(300, step_ms=8, wait_ms=8, gpu_in_wait=1.0)
    run.drop_samples = 1.0
    [span] = input_spans(run)
    assert span["confidence"] == "estimated"
    assert span["evidence"]["gpu_active_pct"] is None


def test_nothing_recorded_yet():
    run = Generated()
    found = run.diagnose()
    assert found["spans"] == found["findings"] == []
    assert found["verdict"] == "No training step was recorded yet."
    assert run.now == START_NS
