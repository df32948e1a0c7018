"""The lane of the input pipeline's stages: what each worked for a batch, where it was read."""

import gzip
import json
import struct

import numpy as np
import pytest
from generated_runs import GPU, Generated, write
from make_recording import SLOW_STAGE, make_recording

from gpu_util_callback import read_recordings
from tensorboard_plugin.lanes import lanes_of
from tensorboard_plugin.pipeline import LANE, stage_lane, stage_ranges
from tensorboard_plugin.tiles import TileServer


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
        run.reading(*stages, batches=100)  # fmt: skip
    write(run, tmp_path)
    return read_recordings(tmp_path)[0]


def test_the_stage_with_most_work_comes_first(recording):
    lane = stage_lane(recording)
    assert [one["title"] for one in lane["series"]] == [
        "map(decode)",
        "batch",
        "from_tensor_slices",
    ]
    assert lane in lanes_of(recording)


@pytest.mark.parametrize("level", [0, 3, 5])
def test_each_reading_holds_for_the_steps_before_it(recording, level):
    count = -(-200 >> level)
    (name, (low, high, mean)), *_ = stage_ranges(recording, "step", level, 0, count)
    assert name == "0"
    size = 2**level
    for k in range(count):
        inside = [5.0 if step < 100 else 40.0 for step in range(k * size, min(200, (k + 1) * size))]
        assert (low[k], high[k]) == (min(inside), max(inside))
        assert abs(mean[k] - np.mean(inside)) < 1e-4
    # Beyond the last reading nothing is known; a part is the same as that part of the whole.
    (_, (_, _, beyond)), *_ = stage_ranges(recording, "step", 0, 195, 10)
    assert np.isfinite(beyond[:5]).all() and np.isnan(beyond[5:]).all()


def test_on_the_time_axis_too(recording):
    length = recording.end_ns - recording.start_ns
    level = length.bit_length() - 5
    (_, (_, _, mean)), *_ = stage_ranges(recording, "time", level, 0, 32)
    known = mean[np.isfinite(mean)]
    assert known[0] == 5 and known[-1] == 40 and (np.diff(known) >= 0).all()


def test_it_is_served_among_other_lanes(tmp_path):
    make_recording(tmp_path, "thirds", steps=300, gpus=1, scalars=False)
    (recording,) = read_recordings(tmp_path)
    body = gzip.decompress(TileServer().tile(recording, "step", 0, 0, 300, ["steps", LANE]))
    size = struct.unpack("<I", body[:4])[0]
    header = json.loads(body[4 : 4 + size])
    names = [(one["lane"], one["name"]) for one in header["series"]]
    lane = stage_lane(recording)
    assert lane["series"][0]["title"] == SLOW_STAGE
    assert [name for lane_, name in names if lane_ == LANE] == [s["name"] for s in lane["series"]]
    start = -(-(4 + size) // 8) * 8
    values = np.frombuffer(body[start : start + 12 * 300 * len(names)], "<f4")
    at = names.index((LANE, "0"))
    mean = values.reshape(len(names), 3, 300)[at, 2]
    assert np.nanmin(mean) > 0


def test_without_readings_there_is_no_lane(tmp_path):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(50, step_ms=10)
    write(run, tmp_path)
    (recording,) = read_recordings(tmp_path)
    assert stage_lane(recording) is None and stage_ranges(recording, "step", 0, 0, 50) == []
