"""Validation, checkpoints and callbacks: named when they take a good part, silent when normal."""

import pytest
from generated_runs import GPU, MS, Generated


def epochs(run: Generated, count: int, *, steps: int = 200, **phases) -> None:
    for _ in range(count):
        with run.epoch():
            run.steps(steps, step_ms=10)
            for kind, (seconds, name, share) in phases.items():
                run.phase(kind, seconds, name=name, share=share)


@pytest.mark.parametrize("seconds, found", [(0.1, 0), (0.3, 0), (0.45, 0), (0.8, 1), (4, 1)])
def test_validation_is_a_stall_from_a_fifth_of_the_time(seconds, found):
    run = Generated(seed=1)
    epochs(run, 5, validation=(seconds, "validation", 0))
    spans = run.findings("host_stall")
    assert len(spans) == found
    for span in spans:
        assert span["title"] == "Validation stalls training"
        assert (span["start_step"], span["end_step"]) == (0, 1000)
        assert span["lost_s"] == pytest.approx(5 * seconds, rel=0.01)
        assert span["evidence"]["times"] == 5
        assert span["evidence"]["seconds_each"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    "seconds, count", [((18, 3.7), 1), ((3.7, 18), 1), ((9, 3.5, 3.5), 1), ((18, 1), 0), ((9, 1, 1), 0), ((2, 2.2), 0)]
)
def test_an_outlier_hides_no_validations_that_are_long_without_it(seconds, count):
    """Of 12.5 s of steps each and what the others take; the longest is not what they usually take."""
    run = Generated(seed=1)
    for each in seconds:
        epochs(run, 1, steps=1250, validation=(each, "validation", 0))
    spans = run.findings("host_stall")
    assert len(spans) == count
    for span in spans:
        assert span["lost_s"] == pytest.approx(sum(seconds), rel=0.01)


def test_two_stalls_at_the_ends_of_the_same_epochs_are_shares_of_the_same_time():
    run = Generated(seed=1)
    epochs(run, 3, validation=(2, "validation", 0), callback=(2, "Pictures.on_epoch_end", 0))
    shares = [span["evidence"]["lost_pct"] for span in run.findings("host_stall")]
    assert shares == pytest.approx([100 * 2 / 6] * 2, abs=0.5)


def test_what_closes_a_validation_is_part_of_the_longest():
    run = Generated(seed=1)
    for tail in (0.01, 0.01, 2.5):
        run.steps(200, step_ms=10)
        run.phase("validation", 1.0, name="validation")
        run.phase("gap", tail, name="end of epoch", account="validation")
    [span] = run.findings("host_stall")
    assert span["evidence"]["seconds_each"] == pytest.approx((3 + 2.52) / 3, abs=0.01)
    assert span["evidence"]["longest_s"] == pytest.approx(3.5)


def test_of_a_validation_only_the_idle_time_counts():
    run = Generated(seed=3, gpus=[GPU])
    epochs(run, 5, validation=(2.0, "validation", 0.5))
    [span] = run.findings("host_stall")
    assert span["lost_s"] == pytest.approx(5, rel=0.1)
    assert span["evidence"]["gpu_active_meanwhile_pct"] == pytest.approx(50, abs=5)


def test_of_more_validations_than_are_kept_apart_only_the_idle_time_counts_too():
    run = Generated(seed=3, gpus=[GPU])
    epochs(run, 1100, steps=50, validation=(0.5, "validation", 0.5))
    [span] = run.findings("host_stall")
    assert span["evidence"]["times"] == 1100
    assert span["lost_s"] == pytest.approx(1100 * 0.25, rel=0.1)
    assert span["evidence"]["gpu_active_meanwhile_pct"] == pytest.approx(50, abs=5)


def test_compiling_is_no_training_beside_which_a_stall_looks_busy():
    """4 s of it, the GPU idle: what it idles in training anyhow is a tenth, not a half."""
    run = Generated(seed=3, gpus=[GPU])
    for epoch in range(5):
        with run.epoch():
            if not epoch:
                run.phase("compilation", 4.0, name="train function traced", account="")
            run.steps(200, step_ms=10, gpu_share=0.9)
            run.phase("callback", 0.8, name="Pictures.on_epoch_end", share=0)
    [span] = run.findings("host_stall")
    assert span["lost_s"] == pytest.approx(5 * 0.8, rel=0.1)


@pytest.mark.parametrize("share, found", [(0, 1), (0.1, 1), (0.5, 0), (0.95, 0)])
def test_a_shorter_validation_is_a_stall_where_the_gpu_was_seen_idle(share, found):
    run = Generated(seed=11, gpus=[GPU])
    epochs(run, 6, steps=400, validation=(0.7, "validation", share))  # 15 %
    spans = run.findings("host_stall")
    assert len(spans) == found
    for span in spans:
        assert list(span["threshold"]) == ["validation_idle_pct"]
        assert span["lost_s"] == pytest.approx(6 * 0.7 * (1 - share), rel=0.1)
        assert "Validate every 2nd epoch" in span["advice"]["text"]


def test_a_checkpoint_every_epoch_is_named():
    run = Generated(seed=5)
    epochs(run, 6, checkpoint=(0.5, "ModelCheckpoint.on_epoch_end", 0))
    [span] = run.findings("host_stall")
    assert span["title"] == "ModelCheckpoint: saving stalls training"
    assert span["evidence"]["callback"] == "ModelCheckpoint.on_epoch_end"
    assert span["lost_s"] == pytest.approx(3, rel=0.01)
    assert "save" in span["advice"]["code"]


def test_a_hook_beside_long_validations_is_held_against_the_steps():
    """7 % of the steps, 4 % of the time from the first to the last."""
    run = Generated(seed=1)
    for _ in range(4):
        with run.epoch():
            run.steps(500, step_ms=10, callback_ms=0.75)
            run.phase("validation", 4, name="validation")
    hooks = [one for one in run.findings("host_stall") if "callback" in one["evidence"]]
    assert len(hooks) == 4
    assert all(hook["evidence"]["callback_pct"] == pytest.approx(7, abs=0.5) for hook in hooks)
    assert all(hook["severity"] == pytest.approx(0.07, abs=0.005) for hook in hooks)


def test_a_heavy_batch_hook_is_a_span_and_named():
    run = Generated(seed=7)
    run.steps(400, step_ms=10)
    begin = run.now
    first, end = run.steps(400, step_ms=10, callback_ms=6)
    run.hook_detail("Watcher.on_train_batch_end", begin, run.now, 400 * 6 * MS, 400)
    run.hook_detail("CSVLogger.on_train_batch_end", begin, run.now, 2 * MS, 400)
    run.steps(400, step_ms=10)
    [span] = run.findings("host_stall")
    assert abs(span["start_step"] - first) <= 5 and abs(span["end_step"] - end) <= 5
    assert span["evidence"]["callback"] == "Watcher.on_train_batch_end"
    assert span["title"] == "Watcher stalls training"
    assert span["lost_s"] == pytest.approx(2.4, rel=0.05)


def test_stalls_and_waits_lose_no_second_twice():
    run = Generated(seed=9)
    epochs(run, 2)
    for _ in range(3):
        with run.epoch():
            run.steps(200, step_ms=2, wait_ms=30, callback_ms=10)
            run.phase("validation", 6)
    found = run.diagnose()
    lost = sum(span["lost_s"] for span in found["spans"])
    assert {span["cause"] for span in found["spans"]} == {"input_bound", "host_stall"}
    assert lost <= 3 * (200 * 0.042 + 6) * 1.001
    assert lost == pytest.approx(3 * (200 * 0.040 + 6), rel=0.03)


def test_the_progress_bar_of_very_short_steps_is_normal():
    run = Generated(seed=10)
    run.steps(2000, step_ms=0.5, callback_ms=0.08)
    assert run.findings("host_stall") == []
