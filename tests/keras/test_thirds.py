"""A run that is healthy, slow and healthy again: one span, its ends and its stage."""

from __future__ import annotations

import pytest
from fit_truth import Truth, given, once_more, recorded_fit, small_model

pytestmark = pytest.mark.timed

N = 180  # steps; a third each
SLOW = range(N // 3, 2 * N // 3)


def thirds(delay_ms: float) -> Truth:
    return Truth([delay_ms if k in SLOW else 0.0 for k in range(N)])


def run(truth: Truth, tmp_path, work_ms: float = 8):
    model = small_model(truth, work_ms=work_ms)
    model.compile("sgd", "mse", jit_compile=False)
    # Batches made in advance keep a busy machine's hiccups from the steps.
    return recorded_fit(model, tmp_path / "logs", **given("tf.data + prefetch", truth))


def input_spans(recording) -> list[dict]:
    return [span for span in recording.stored["spans"] if span["cause"] == "input_bound"]


def test_the_slow_third_is_one_span_with_its_stage(tmp_path):
    def attempt():
        recording = run(thirds(30.0), tmp_path)
        spans = input_spans(recording)
        if len(spans) != 1:
            return [f"{len(spans)} spans"]
        (span,) = spans
        slow = recording.steps["input_wait_ns"][SLOW.start : SLOW.stop].sum() / 1e9
        checks = {
            "start": abs(span["start_step"] - SLOW.start) <= 5,
            "end": abs(span["end_step"] - SLOW.stop) <= 5,
            "stage": "map(load)" in str(span["evidence"]),
            "lost": span["lost_s"] == pytest.approx(slow, rel=0.15),
            "once": not [f for f in recording.stored["findings"] if f["cause"] == "input_bound"],
        }
        return [f"{name}: {span}" for name, right in checks.items() if not right]

    once_more(attempt)


def test_a_delay_that_prefetch_hides_is_no_span(tmp_path):
    """Nor are the two thirds without a delay."""
    once_more(lambda: input_spans(run(thirds(4.0), tmp_path)))
