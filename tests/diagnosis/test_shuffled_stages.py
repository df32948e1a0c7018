"""Stages before a shuffle or a repeat: the work for the batches that came meanwhile, no more and no less."""

import numpy as np
import pytest

from gpu_util_callback.diagnosis.evidence.pipeline import Pipeline, fill_ms
from gpu_util_callback.recording.schema import TABLES

# node, consumer, stage, op, elements, ms: 40 batches of 10, of which the buffer holds 60 more
FILLED = (
    (4, 3, "map(decode)", "Map", 1000, 500.0),
    (1, -1, "iterator", "Root", 40, 0.0),
    (3, 2, "shuffle", "ShuffleV3", 400, 25.0),
    (2, 1, "batch", "BatchV2", 40, 40.0),
)


def read(*readings) -> dict:
    """Return the stages by name after these readings, one a second."""
    rows = []
    for second, reading in enumerate(readings):
        for node, parent, stage, op, elements, ms in reading:
            known = {"time_ns": second * 10**9, "step": second, "which": "train", "node": node, "parent": parent}
            rows.append(
                known
                | {"stage": stage, "op": op, "elements": elements, "processing_ns": round(ms * 1e6), "parallelism": 1.0}
                | {"buffered": 600.0 if stage == "shuffle" else np.nan, "buffer_limit": np.nan, "flags": ""}
            )
    pipeline = Pipeline()
    pipeline.add({name: np.array([row[name] for row in rows]) for name in TABLES["pipeline"]})
    return {stage.name: stage for stage in pipeline.stages(-1, 10**12)}


def test_work_of_elements_in_the_buffer_is_not_counted_for_the_batches():
    stages = read(FILLED)
    assert stages["map(decode)"].work_ms_per_batch == pytest.approx(5.0)  # half a millisecond an element
    assert stages["map(decode)"].elements_per_batch == pytest.approx(10)
    assert stages["shuffle"].work_ms_per_batch == pytest.approx(0.25)
    assert stages["batch"].work_ms_per_batch == pytest.approx(1.0)


def test_what_the_buffer_held_is_counted_as_it_runs_empty():
    emptied = tuple((*row[:4], {4: 400, 3: 1000, 2: 100, 1: 100}[row[0]], row[5] / 2.5) for row in FILLED)
    stages = read(FILLED, emptied)
    assert stages["map(decode)"].work_ms_per_batch == pytest.approx(5.0)
    assert stages["map(decode)"].elements_per_batch == pytest.approx(10)


def test_a_reading_in_which_no_batch_came_counts_for_none():
    filling = tuple((*row[:4], 700 if row[0] == 4 else 0, 350.0 if row[0] == 4 else 0.0) for row in FILLED)
    assert read(filling, FILLED)["map(decode)"].work_ms_per_batch == pytest.approx(5.0)


def test_a_shuffle_whose_input_begins_anew_in_each_pass_passes_on_no_more_than_it_took():
    repeated = [(*row[:3], "ShuffleAndRepeatV2", *row[4:]) if row[0] == 3 else row for row in FILLED]
    anew = tuple((*row[:4], 1, row[5]) if row[0] == 4 else row for row in repeated)
    assert read(anew)["shuffle"].work_ms_per_batch == pytest.approx(25 / 40)


@pytest.mark.parametrize("repeat", ["Repeat", "ForeverRepeat", "ShuffleAndRepeatV2"])
def test_passes_that_ended_since_the_last_reading_worked_like_the_one_that_goes_on(repeat):
    """Seen: a filter kept one in twenty of 480 photos, so that most passes came and went between two readings."""
    row = (2, 1, "repeat", repeat, 40, 1.0)
    short = (
        (1, -1, "iterator", "Root", 40, 0.0),
        row,
        (3, 2, "batch", "BatchV2", 5, 5.0),
        (4, 3, "m", "Map", 50, 25.0),
    )
    stages = read(short)
    assert stages["m"].work_ms_per_batch == pytest.approx(5.0) and stages["m"].elements_per_batch == pytest.approx(10)
    assert stages["batch"].work_ms_per_batch == pytest.approx(1.0)
    assert stages["repeat"].work_ms_per_batch == pytest.approx(1 / 40)


def test_stages_stand_in_the_order_of_the_pipeline_in_whatever_order_they_are_read():
    assert [name for name, _ in sorted(read(FILLED).items(), key=lambda item: item[1].place)] == [
        "iterator",
        "batch",
        "shuffle",
        "map(decode)",
    ]


def test_filling_takes_the_work_of_what_is_in_the_buffer():
    assert fill_ms(list(read(FILLED).values())) == pytest.approx(600 / 10 * 5.0)
    assert fill_ms([stage for name, stage in read(FILLED).items() if name != "shuffle"]) == 0.0
