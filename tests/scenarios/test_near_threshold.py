"""What takes 5-7 % of every step is one finding over all of them, not one a crest."""

import pytest
from scoring import by_cause, iou
from threshold_cases import CAUSES, STEPS, even, every_fifth, run_of, skewed, waves

SEEDS = range(8)


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("noise", [even, waves, skewed, every_fifth])
@pytest.mark.parametrize("times", [1.08, 1.2, 1.4])
def test_it_is_told_once(cause, noise, times):
    for seed in SEEDS:
        findings = by_cause(run_of(cause, [times], noise, seed).diagnose())
        assert set(findings) == {cause}
        assert len(findings[cause]) == 1, seed
        assert iou([(0, STEPS)], findings[cause], STEPS) >= 0.95


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("noise", [even, waves, skewed, every_fifth])
def test_its_crests_are_not_told_where_it_stays_below(cause, noise):
    for seed in SEEDS:
        assert run_of(cause, [0.92], noise, seed).diagnose()["spans"] == []


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("high, low", [(1.3, 0.4), (2, 0.4), (4, 0.8), (8, 0.9)])
def test_stretches_that_stand_out_stay_apart(cause, high, low):
    """Also beside a loss just below the threshold, which goes on between them."""
    part = STEPS // 5
    for seed in SEEDS:
        run = run_of(cause, [low, high, low, high, low], even, seed)
        spans = sorted(run.diagnose()["spans"], key=lambda span: span["start_step"])
        assert len(spans) == 2, seed
        for number, span in enumerate(spans):
            meant = (1 + 2 * number) * part, (2 + 2 * number) * part
            assert iou([meant], [span], STEPS) >= 0.95
