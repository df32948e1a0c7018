"""Gradients that are exchanged after each batch, where an update adds up several."""

import pytest
from generated_runs import Generated


def accumulating(count=600, updates=100, exposed_ms=8.0):
    run = Generated(seed=2, framework={"name": "torch", "backend": "torch"}, world_size=2)
    exchanges = {"count": count, "updates": updates, "exposed_ms": exposed_ms}
    run.facts["fit"] = {"loop": "custom", "input_kind": "DataLoader", "exchanges": exchanges}
    run.steps(600, step_ms=20)
    return run


def test_they_are_named_with_the_lines_that_spare_them():
    [span] = accumulating().findings("communication_bound")
    assert span["lost_s"] == pytest.approx(4.8) and span["evidence"]["exchanges_per_update"] == 6
    assert "model.no_sync()" in span["advice"]["code"]
    assert span["saves_s"] == pytest.approx(4.8 * 5 / 6, rel=0.2)


@pytest.mark.parametrize(
    "given",
    [
        {"updates": 201},
        {"count": 1800, "updates": 600},
        {"count": 250},
        {"updates": 600},
        {"exposed_ms": 1.9},
        {"count": 0, "updates": 0},
    ],
)
def test_one_exchange_an_update_and_a_short_one_are_no_finding(given):
    assert not accumulating(**given).findings("communication_bound")


@pytest.mark.parametrize(
    ("share", "samples", "is_said"),
    [(0.6, 100, True), (0.3, 100, True), (0.15, 40, True), (0.02, 100, False), (0.6, 3, False)],
)
def test_buffers_that_are_sent_in_each_step_are_asked_about(share, samples, is_said):
    """A slower rank is waited for there too, and BatchNorm's statistics are buffers."""
    run = accumulating(updates=600)
    parts = {"exchange of buffers": share, "forward": 0.9 - share, "backward": 0.1}
    run.facts["fit"]["python_in_steps"] = {"samples": samples, "aside": 0.0, "parts": parts}
    run.facts["framework"]["device"] = "cpu"
    spans = run.findings("communication_bound")
    assert [span["lost_s"] for span in spans] == [pytest.approx(share * 12, rel=0.02)] * is_said
    for span in spans:
        assert span["advice"]["question"] and span["saves_s"] == 0 and "BatchNorm" in span["advice"]["changes"]
        assert "broadcast_buffers=False" in span["advice"]["code"] and "slower rank" in span["advice"]["text"]
