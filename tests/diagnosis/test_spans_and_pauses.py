"""A span covers its own time: training that stands still in between belongs to what stopped it."""

from itertools import pairwise

import numpy as np
import pytest
from generated_runs import GPU, MS, START_NS, Generated
from hypothesis import given, settings
from hypothesis import strategies as st

STEP_MS, WAIT_MS = 8, 15
STRETCHES = st.lists(st.integers(40, 300), min_size=1, max_size=4)


def epochs(
    count: int, stretches: list[int], *, validation_s=5.0, save_s=1.4, slow_first=False, gpus=(), what="wait_ms"
):
    """Return a run of equal epochs of fast and slow stretches in turns, each with a validation and a checkpoint."""
    run = Generated(seed=1, gpus=list(gpus), noise=0.02)
    for _ in range(count):
        with run.epoch():
            for place, steps in enumerate(stretches):
                slow = place % 2 != slow_first
                begun = run.now
                run.steps(steps, step_ms=STEP_MS, **{what: WAIT_MS * slow})
                if what == "callback_ms" and slow:
                    run.hook_detail("Watcher.on_train_batch_end", begun, run.now, steps * WAIT_MS * MS, steps)
            if validation_s:
                run.phase("validation", validation_s)
            if save_s:
                run.phase("checkpoint", save_s, name="ModelCheckpoint.on_epoch_end")
    return run


def pauses(run: Generated) -> list[tuple[int, int]]:
    return [(row[2], row[3]) for row in run._rows["phases"] if row[0] in ("validation", "checkpoint")]


def pieces(span: dict) -> list[tuple[int, int]]:
    return [(piece["start_ns"], piece["end_ns"]) for piece in span.get("pieces") or [span]]


def most_overlap_ns(inside: list[tuple[int, int]], others: list[tuple[int, int]]) -> int:
    return max((min(b, d) - max(a, c) for a, b in inside for c, d in others), default=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    count=st.integers(2, 6),
    stretches=STRETCHES,
    slow_first=st.booleans(),
    validation_s=st.sampled_from([0, 0.05, 0.7, 8]),
    save_s=st.sampled_from([0, 0.4, 2.5]),
    gpus=st.sampled_from([(), (GPU,)]),
    what=st.sampled_from(["wait_ms", "callback_ms", "compile_ms"]),
)
def test_no_span_covers_a_pause_and_equal_epochs_lose_equally(
    count, stretches, slow_first, validation_s, save_s, gpus, what
):
    run = epochs(
        count, stretches, validation_s=validation_s, save_s=save_s, slow_first=slow_first, gpus=gpus, what=what
    )
    spans = run.diagnose()["spans"]
    of_steps = [span for span in spans if "validation" not in span["id"] and "ModelCheckpoint" not in span["id"]]
    longest_ns = 2 * (STEP_MS + WAIT_MS) * MS
    for span in of_steps:
        assert most_overlap_ns([(span["start_ns"], span["end_ns"])], pauses(run)) <= longest_ns
    for span in spans:
        if span not in of_steps:  # drawn where it occurred
            kind = "validation" if "validation" in span["id"] else "checkpoint"
            occurred = [(row[2], row[3]) for row in run._rows["phases"] if row[0] == kind]
            assert pieces(span) == occurred
    each = sum(stretches)
    if validation_s >= 0.7 and len(of_steps) >= count:
        lost = [0.0] * count
        for span in of_steps:
            lost[span["start_step"] // each] += span["lost_s"]
        slow = sum(steps for place, steps in enumerate(stretches) if place % 2 != slow_first)
        # GPU samples come ten times a second: around a stretch they show a tenth of one more or less.
        assert lost == pytest.approx([np.mean(lost)] * count, rel=0.02, abs=0.1 if gpus else 0.0)
        assert sum(lost) == pytest.approx(count * slow * WAIT_MS / 1e3, rel=0.05, abs=0.2 * count if gpus else 0.02)


@pytest.mark.parametrize("last", range(398, 404))
@pytest.mark.parametrize("slow_first", [False, True])
def test_epochs_of_any_length_are_right(last, slow_first):
    """Blocks hold four steps: an epoch may end in the midst of one."""
    run = epochs(4, [400, last], slow_first=slow_first)
    spans = [span for span in run.diagnose()["spans"] if span["cause"] == "input_bound"]
    assert len(spans) == 4
    assert [span["severity"] for span in spans] == pytest.approx([0.65] * 4, abs=0.01)


def test_slow_parts_on_both_sides_of_a_validation_are_two_spans():
    run = epochs(4, [200, 400, 201], slow_first=True)
    spans = [span for span in run.diagnose()["spans"] if span["cause"] == "input_bound"]
    assert [span["severity"] for span in spans] == pytest.approx([0.65] * 8, abs=0.01)
    assert sum(span["lost_s"] for span in spans) == pytest.approx(4 * 401 * WAIT_MS / 1e3, rel=0.02)


def test_of_very_many_epochs_the_pieces_show_the_pauses():
    run = epochs(120, [41], slow_first=True, validation_s=0.5, save_s=0)
    spans = [span for span in run.diagnose()["spans"] if span["cause"] == "input_bound"]
    assert 1 < len(spans) <= 24
    for span in spans:
        assert most_overlap_ns(pieces(span), pauses(run)) <= 2 * (STEP_MS + WAIT_MS) * MS
    assert sum(len(pieces(span)) for span in spans) == 120


def test_a_pause_without_a_name_is_outside_the_span_too():
    """A loop of one's own validates between its epochs and does not say so."""
    run = Generated(seed=1, noise=0.02, fit={"loop": "custom", "input_kind": "generator"})
    for _ in range(4):
        with run.epoch():
            run.steps(401, step_ms=STEP_MS, wait_ms=WAIT_MS)
        run.now += 5_000 * MS
    spans = sorted(
        (span for span in run.diagnose()["spans"] if span["cause"] == "input_bound"), key=lambda one: one["start_step"]
    )
    assert [span["start_step"] for span in spans] == [0, 401, 802, 1203]
    assert all(after["start_ns"] - before["end_ns"] >= 4_900 * MS for before, after in pairwise(spans))
    assert spans[0]["start_ns"] == START_NS
