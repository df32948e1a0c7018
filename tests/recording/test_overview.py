"""The overview says in a thousand buckets what all rows say, and costs a fixed size."""

from pathlib import Path

import numpy as np
import pytest
from scripted_runs import MS, step_rows

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.overview import SIZE
from gpu_util_callback.recording.pyramid import Folded, reduce_rows
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.summary import Distribution


def brute(keys, values, shift):
    found = {}
    for bucket in np.unique(keys >> shift):
        part = values[:, keys >> shift == bucket]
        found[int(bucket)] = (
            np.nanmin(part, 1), np.nanmax(part, 1), np.nanmean(part, 1), (~np.isnan(part)).sum(1),
        )  # fmt: skip
    return found


@pytest.mark.parametrize("blocks", [1, 7, 400])
def test_folding_gives_what_reducing_at_once_gives(blocks):
    random = np.random.default_rng(blocks)
    keys = np.sort(random.integers(0, 5_000, 3_000))
    values = random.normal(100, 30, (2, 3_000)).round(3)
    values[1, ::7] = np.nan
    folded = Folded(["a", "b"], 0, 64)
    for part in np.array_split(np.arange(3_000), blocks):
        folded.add(keys[part], ["a", "b"], values[:, part])
    assert folded.used <= 64
    assert folded.shift == 7
    expected = brute(keys, values, folded.shift)
    mean = folded.buckets.mean
    for bucket in range(folded.used):
        if bucket in expected:
            low, high, average, count = expected[bucket]
            assert folded.buckets.low[:, bucket] == pytest.approx(low)
            assert folded.buckets.high[:, bucket] == pytest.approx(high)
            assert mean[:, bucket] == pytest.approx(average, rel=1e-6)
            assert folded.buckets.count[:, bucket].tolist() == count.tolist()
        else:
            assert np.isnan(folded.buckets.low[:, bucket]).all()


def test_a_column_that_appears_later_is_absent_before():
    folded = Folded(["a"], 0, 8)
    folded.add(np.array([0, 1]), ["a"], np.array([[1.0, 2.0]]))
    folded.add(np.array([2]), ["b"], np.array([[5.0]]))
    assert np.isnan(folded.buckets.low[1, :2]).all()
    assert folded.buckets.low[1, 2] == 5
    assert np.isnan(folded.buckets.low[0, 2])


def test_reducing_nothing_but_absent_values_gives_nan():
    numbers, buckets = reduce_rows(np.array([3, 3, 9]), np.array([[np.nan, np.nan, 1.0]]), 1)
    assert numbers.tolist() == [1, 4]
    assert np.isnan(buckets.mean[0, 0])
    assert buckets.mean[0, 1] == 1


def test_a_long_runs_overview_has_a_fixed_size_and_the_rows_extremes(
    make_writer, tmp_path, scripted_time
):
    writer = make_writer()
    sizes, steps, blocks = [], [], 30
    start = writer.facts["started_ns"]
    for block in range(blocks):
        rows = step_rows(4_000, first=block * 4_000, start_ns=start, seed=block)
        start = int(rows["start_ns"][-1] + rows["duration_ns"][-1])
        if block == 17:
            rows["input_wait_ns"][1_234] = 777 * MS  # one bad step in 120,000
        steps.append(rows)
        writer.append("steps", rows)
        times = np.linspace(rows["start_ns"][0], start - 1, 200).astype(np.int64)
        writer.append_samples("gpu0", ["utilization_pct"], times, np.full((200, 1), block))
        writer.flush()
        scripted_time.advance(61)
        writer.flush()
        sizes.append((Path(writer.path) / "overview.npz").stat().st_size)
    writer.close("ended")
    assert max(sizes) < 3 * sizes[5]
    (found,) = read_recordings(tmp_path / "run")
    overview = found.overview
    wait = STEP_SERIES.index("input_wait_ns")
    for axis in ("step", "time"):
        folded = overview.axes[axis]["steps"]
        assert SIZE // 4 < folded.used <= SIZE
        assert np.nanmax(folded.buckets.high[wait]) == np.float32(777 * MS)
        assert folded.buckets.count[0].sum() == blocks * 4_000
    shift = overview.axes["step"]["steps"].shift
    bad = int(np.nanargmax(overview.axes["step"]["steps"].buckets.high[wait]))
    assert bad == (17 * 4_000 + 1_234) >> shift
    # Every bucket of steps knows when its first step began, to the nanosecond.
    starts = np.concatenate([rows["start_ns"] for rows in steps]) - found.start_ns
    marks = overview.marks["step"]
    every = starts[:: 1 << marks.shift]
    assert (marks.values[: len(every)] == every).all()
    # Samples lie on the step axis where they were taken.
    used = overview.axes["step"]["gpu0"]
    half = (15 * 4_000 + 2_000) >> used.shift
    assert used.buckets.mean[0, half] == pytest.approx(15)


def test_a_live_runs_overview_covers_the_open_segment_too(make_writer, tmp_path, scripted_time):
    writer = make_writer()
    writer.append("steps", step_rows(100))
    scripted_time.advance(61)
    writer.flush()
    writer.append("steps", step_rows(100, first=100))
    writer.flush()
    scripted_time.advance(61)
    writer.flush()  # seals
    writer.append("steps", step_rows(50, first=200))
    writer.flush()
    (found,) = read_recordings(tmp_path / "run")
    assert found.overview.last_step == 249
    assert found.overview.axes["step"]["steps"].buckets.count[0].sum() == 250
    assert found.summary["steps"]["duration_ns"]["count"] == 250
    writer.append("steps", step_rows(50, first=250))
    writer.flush()
    assert found.refresh()
    assert found.overview.last_step == 299
    assert not found.refresh()


def test_a_damaged_overview_is_made_again_from_the_segments(make_writer, tmp_path):
    writer = make_writer()
    writer.append("steps", step_rows(500))
    writer.append_samples("gpu0", ["power_mw"], np.arange(20), np.full((20, 1), 7.0))
    writer.close("ended")
    (whole,) = read_recordings(tmp_path / "run")
    path = Path(writer.path) / "overview.npz"
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", bytes(len(content))):
        path.write_bytes(damaged)
        (found,) = read_recordings(tmp_path / "run")
        assert found.summary == whole.summary
        assert found.overview.last_step == 499
        assert [p.path for p in found.problems] == [str(path)]
        assert "reading all segments instead" in found.problems[0].message
    path.unlink()
    (found,) = read_recordings(tmp_path / "run")
    assert found.summary == whole.summary
    assert len(found.problems) == 1


def test_quantiles_are_within_a_percent():
    random = np.random.default_rng(0)
    values = random.lognormal(15, 2, 50_000)
    one = Distribution()
    for part in np.array_split(values, 13):
        one.add(part)
    one.add(np.array([np.nan]))
    found = Distribution.restore(one.state()).result()
    assert found["count"] == 50_000
    assert found["mean"] == pytest.approx(values.mean())
    assert found["max"] == values.max()
    for percent in (5, 50, 95, 99):
        assert found[f"p{percent}"] == pytest.approx(np.percentile(values, percent), rel=0.011)


def test_quantiles_of_zeros_and_of_nothing():
    one = Distribution()
    assert one.result() == {"count": 0}
    one.add(np.array([0.0, 0, 0, 50]))
    assert one.result()["p50"] == 0
    assert one.result()["p99"] == pytest.approx(50, rel=0.01)
