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
