"""The lane of the input pipeline's stages: what each worked for a batch, where it was read."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from generated_runs import GPU, Generated, write
from make_recording import SLOW_STAGE, make_recording
from scripted_runs import ScriptedTime, step_rows
from tile_reply import decode_tile

from gpu_util_callback import read_recordings
from gpu_util_callback.recording import RecordingWriter
from gpu_util_callback.recording import writer as writer_module
from tensorboard_plugin import lanes
from tensorboard_plugin.lanes import LANE, lanes_of, stage_lane, stage_ranges
from tensorboard_plugin.tiles.recording_tiles import View
from tensorboard_plugin.tiles.server import TileServer


@pytest.fixture
def recording(tmp_path):
    """Steps 0 to 99 decode in 5 ms a batch, 100 to 199 in 40 ms."""
    run = Generated(seed=1, gpus=[GPU])
    for ms in (5.0, 40.0):
        run.steps(100, step_ms=10)
        stages = (
            ("from_tensor_slices", "TensorSlice", 0.1, 1, ""),
            ("map(decode)", "ParallelMapV2", ms, 2, ""),
            ("batch", "Batch", 0.5, 1, ""),
        )
        run.reading(*stages, batches=100)
    write(run, tmp_path)
    return read_recordings(tmp_path)[0]


def test_the_stage_with_most_work_comes_first(recording):
    lane = stage_lane(recording)
    assert [one["title"] for one in lane["series"]] == ["map(decode)", "batch", "from_tensor_slices"]
    assert lane in lanes_of(recording)


@pytest.mark.parametrize("level", [0, 3, 5])
def test_each_reading_holds_for_the_steps_before_it(recording, level):
    count = -(-200 >> level)
    (name, (low, high, mean)), *_ = stage_ranges(recording, "step", View("step", level, 0, count).edges)
    assert name == stage_lane(recording)["series"][0]["name"]
    size = 2**level
    for k in range(count):
        inside = [5.0 if step < 100 else 40.0 for step in range(k * size, min(200, (k + 1) * size))]
        assert (low[k], high[k]) == (min(inside), max(inside))
        assert abs(mean[k] - np.mean(inside)) < 1e-4
    # Beyond the last reading nothing is known; a part is the same as that part of the whole.
    (_, (_, _, beyond)), *_ = stage_ranges(recording, "step", View("step", 0, 195, 10).edges)
    assert np.isfinite(beyond[:5]).all() and np.isnan(beyond[5:]).all()


def test_on_the_time_axis_too(recording):
    length = recording.end_ns - recording.start_ns
    level = length.bit_length() - 5
    (_, (_, _, mean)), *_ = stage_ranges(recording, "time", View("time", level, 0, 32).edges)
    known = mean[np.isfinite(mean)]
    assert known[0] == 5 and known[-1] == 40 and (np.diff(known) >= 0).all()


def test_it_is_served_among_other_lanes(tmp_path):
    make_recording(tmp_path, "thirds", steps=300, gpus=1, scalars=False)
    (recording,) = read_recordings(tmp_path)
    body = gzip.decompress(TileServer().tile(recording, "step", 0, 0, 300, ["steps", LANE]))
    tile = decode_tile(body)
    lane = stage_lane(recording)
    assert lane["series"][0]["title"] == SLOW_STAGE
    served = [name for lane_, name in tile.series if lane_ == LANE]
    assert served == [one["name"] for one in lane["series"]]
    assert np.nanmin(tile.series[(LANE, served[0])][2]) > 0


def test_a_long_run_has_the_lane_too(tmp_path, monkeypatch):
    """Its readings are in its top, and those of the newest segments are added."""
    monkeypatch.setattr(writer_module, "SEAL_BYTES", 1)  # a segment for each flush
    script = ScriptedTime()
    writer = RecordingWriter(tmp_path, {}, clock=script.clock())
    start, live = writer.facts["started_ns"], None
    for number in range(40):
        writer.append("steps", step_rows(100, first=number * 100, start_ns=start))
        start += 10**9
        ms = 40.0 if 10 <= number < 20 else 5.0
        writer.append(
            "pipeline",
            {
                "time_ns": [start] * 2,
                "step": [number * 100 + 100] * 2,
                "which": ["train"] * 2,
                "node": [0, 1],
                "parent": [-1, 0],
                "stage": ["batch", "map(decode)"],
                "op": ["Batch", "MapV2"],
                "elements": [100] * 2,
                "processing_ns": [10**8, round(ms * 1e8)],
            },
        )
        script.advance(1)
        writer.flush()
        if number % 9 == 4:
            if live is None:
                (live,) = read_recordings(tmp_path)
            live.refresh()
            assert [one["title"] for one in stage_lane(live)["series"]] == ["map(decode)", "batch"]
            (_, (_, high, _)), _ = stage_ranges(live, "step", View("step", 4, 0, 300).edges)
            drawn = np.flatnonzero(np.isfinite(high))
            assert drawn[-1] == (number * 100 + 99) // 16, "up to the newest reading"
    assert len({one.last for one in live.segments}) < 40, "nothing was merged"
    assert np.nanmax(high[:62]) == 5 and np.nanmax(high[63:120]) == 40


def test_a_run_of_days_is_drawn_without_going_through_its_readings(recording, monkeypatch):
    """Views of any width give what adding up reading by reading gives."""
    random = np.random.default_rng(0)
    edges = np.append(0.0, np.cumsum(random.integers(0, 40, 500))).astype(float)
    ms = random.gamma(2, 5, (2, 500))
    ms[0, 100:180] = np.nan
    made = lanes._Readings([("0", "a"), ("1", "b")], ms, {"step": edges})
    monkeypatch.setattr(lanes, "_readings", lambda recording: made)
    for level, first, count in ((0, 950, 400), (3, 0, 1_300), (7, 2, 60), (12, 0, 4)):
        for row, (_, (low, high, mean)) in enumerate(
            stage_ranges(recording, "step", View("step", level, first, count).edges)
        ):
            for bucket in range(0, count, 7):
                begin, end = (first + bucket) << level, (first + bucket + 1) << level
                share = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
                inside = (share > 0) & np.isfinite(ms[row])
                found = [low[bucket], high[bucket], mean[bucket]]
                if not inside.any():
                    assert np.isnan(found).all()
                    continue
                values, weight = ms[row][inside], share[inside]
                truth = [values.min(), values.max(), (values * weight).sum() / weight.sum()]
                np.testing.assert_allclose(found, truth, rtol=1e-4)


def test_without_readings_there_is_no_lane(tmp_path):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(50, step_ms=10)
    write(run, tmp_path)
    (recording,) = read_recordings(tmp_path)
    assert stage_lane(recording) is None and stage_ranges(recording, "step", View("step", 0, 0, 50).edges) == []


def test_the_recordings_to_try_have_the_lane():
    """It is drawn from their tops alone: those of an earlier writer had none."""
    kept = read_recordings(Path(__file__).parents[2] / "docs/try/recordings")
    assert [stage_lane(one)["title"] for one in kept] == ["Pipeline stages"] * 3
