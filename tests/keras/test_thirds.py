"""A run that is healthy, slow and healthy again: one span, its ends and its stage."""

from __future__ import annotations

import pytest
from fit_truth import given, small_model
from injected import Truth
from injected_fit import recorded_fit

N = 30  # steps of each part
SLOW = slice(2 * N, 3 * N)


@pytest.mark.real_clock("milliseconds of a pipeline that sleeps")
def test_the_slow_part_is_one_span_with_its_stage(tmp_path):
    """A delay that prefetch hides is none, nor is a part without a delay."""
    truth = Truth([0.0] * N + [4.0] * N + [30.0] * N + [0.0] * N)
    model = small_model(truth, work_ms=8)
    model.compile("sgd", "mse", jit_compile=False)
    # Batches made in advance keep a busy machine's hiccups from the steps.
    recording = recorded_fit(model, tmp_path / "logs", **given("tf.data + prefetch", truth))
    (span,) = [one for one in recording.stored["spans"] if one["cause"] == "input_bound"]
    assert abs(span["start_step"] - SLOW.start) <= 5 and abs(span["end_step"] - SLOW.stop) <= 5, span
    assert "map(load)" in str(span["evidence"])
    assert span["lost_s"] == pytest.approx(recording.steps["input_wait_ns"][SLOW].sum() / 1e9, rel=0.15)
    assert [one for one in recording.stored["findings"] if one["cause"] == "input_bound"] == []
