"""The overview says in a thousand buckets what all rows say, and costs a fixed size."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scripted_runs import MS, step_rows

from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.recording import reader as reader_module
from gpu_util_callback.recording.container import Container, Damaged
from gpu_util_callback.recording.overview import (
    SHORT,
    SIZE,
    Folded,
    Overview,
    StoredGroups,
    extremes,
    reduce_rows,
)
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import Segment, complete
from gpu_util_callback.recording.summary import Distribution

START = 1_700_000_000_000_000_000


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


def test_a_damaged_overview_is_made_again_from_the_segments(make_writer, tmp_path, scripted_time):
    writer = make_writer()
    writer.append("steps", step_rows(500))
    writer.append_samples("gpu0", ["power_mw"], START + np.arange(20), np.full((20, 1), 7.0))
    scripted_time.advance(3)
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


def test_rows_added_later_are_folded_in_when_somebody_looks():
    def rows(first, count, columns):
        steps = complete("steps", step_rows(count, first=first, start_ns=START + first * 10 * MS))
        times = START + np.arange(first, first + count, 3) * 10 * MS
        values = {name: times % 1_000 + at for at, name in enumerate(columns)}
        return {"steps": steps}, {"gpu0": {"time_ns": times, **values}}

    early, late = rows(0, 900, ["a"]), rows(900, 2_600, ["b", "a"])
    whole = Overview(START)
    whole.add(*early)
    stored = Overview.unpack(Container(whole.pack({})))
    grown, before = stored.with_rows(*late), whole.pack({})
    whole.add(*late)
    assert not any(grown.axes[axis]._made for axis in ("step", "time"))
    assert grown.last_step == whole.last_step == 3_499
    for axis in ("step", "time"):
        assert (grown.marks[axis].values == whole.marks[axis].values).all()
        for group in ("steps", "gpu0"):
            truth = whole.axes[axis][group]
            assert grown.axes[axis].about(group) == (truth.columns, truth.shift)
            found = grown.axes[axis][group]
            assert (found.columns, found.shift, found.used) == (
                truth.columns, truth.shift, truth.used,
            )  # fmt: skip
            for field in ("low", "high", "total", "count"):
                np.testing.assert_allclose(
                    getattr(found.buckets, field), getattr(truth.buckets, field), rtol=1e-6
                )
    assert stored.pack({}) == before, "what was stored stays as it is"
    grown.release()
    assert not grown.axes["time"]._made
    assert "gpu0" in grown.axes["time"] and "gpu1" not in grown.axes["time"]


def test_a_flush_costs_its_own_segment_and_not_the_overview(
    make_writer, tmp_path, scripted_time, monkeypatch
):
    """What a tab that is kept open asks for every two seconds of a live run."""
    work = Counter()

    def watch(owner, name, key):
        real = getattr(owner, name)

        def watched(*arguments):
            work[key] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(StoredGroups, "_unpacked", "unpacked")
    watch(Folded, "add", "folded")
    watch(reader_module.Summary, "restore", "restored")
    watch(Segment, "__init__", "opened")
    writer = make_writer()
    now, done, found, before = writer.facts["started_ns"], 0, None, -1
    for flush in range(70):
        steps = step_rows(200, first=done, start_ns=now)
        now, done = int(steps["start_ns"][-1] + steps["duration_ns"][-1]), done + 200
        writer.append("steps", steps)
        for gpu in range(4):
            times = steps["start_ns"][::10]
            writer.append_samples(f"gpu{gpu}", ["power_mw"], times, np.full((20, 1), flush))
        writer.flush()
        scripted_time.advance(2)
        if found is None:
            (found,) = read_recordings(tmp_path / "run")
        work.clear()
        found.refresh()
        covered = found.facts["covered"]
        assert found.summary["gpu3"]["power_mw"]["max"] == flush
        assert found.summary["steps"]["duration_ns"]["count"] == done
        assert found.overview.last_step == done - 1
        assert found.overview.marks["step"].values.max() >= 0
        assert work["unpacked"] == work["folded"] == 0
        assert work["opened"] <= 1 and work["restored"] <= 1
        if covered == before:
            assert work["restored"] == 0, "what is sealed was read again"
        before = covered
    assert covered > 1
    assert found.overview.axes["step"]["gpu2"].buckets.count.sum() == 70 * 20


def test_a_damaged_overview_is_read_once_until_it_changes(make_writer, tmp_path, monkeypatch):
    writer = make_writer()
    writer.append("steps", step_rows(500))
    writer.close("ended")
    path = Path(writer.path) / "overview.npz"
    content = path.read_bytes()
    path.write_bytes(content[:300])
    asked = []
    read = Recording._read
    monkeypatch.setattr(Recording, "_read", lambda one, name: asked.append(name) or read(one, name))
    (found,) = read_recordings(tmp_path / "run")
    for _ in range(5):
        assert (found.level_files, found.overview.last_step, len(found.segments)) == ([], 499, 1)
        found.longest_phases(9)
    assert asked.count("overview.npz") == 1
    path.write_bytes(content)
    manifest = Path(writer.path) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "flushes": 99}))
    assert found.refresh()
    assert found.overview.last_step == 499
    assert asked.count("overview.npz") == 2


@pytest.mark.parametrize("damage", [np.full(SIZE, -1), np.zeros(3, np.int64), np.zeros(SIZE)])
def test_marks_that_cannot_be_true_make_the_overview_a_damaged_one(damage):
    overview = Overview(START)
    overview.add({"steps": complete("steps", step_rows(50))}, {})
    overview.marks["time"].values = damage
    with pytest.raises(Damaged, match="mark"):
        Overview.unpack(Container(overview.pack({})))


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("longest", [1, 3, SHORT, SHORT + 1, 10 * SHORT])
@pytest.mark.parametrize("few_long", [True, False])
def test_no_extreme_is_lost_however_long_the_runs_are(alike, longest, few_long):
    random = np.random.default_rng(longest)
    sizes = random.integers(1, longest + 1, 400)
    if few_long:
        sizes[3:] = np.minimum(sizes[3:], SHORT)
    starts = np.cumsum(sizes) - sizes
    low = random.normal(size=(3, sizes.sum())).astype(np.float32)
    low[0, random.random(low.shape[1]) < 0.4] = np.nan
    low[1] = np.nan
    high = low if alike else low + random.random(low.shape, np.float32)
    before = low.copy()
    least, most = extremes(low, high, starts)
    np.testing.assert_array_equal(least, np.fmin.reduceat(low, starts, axis=1))
    np.testing.assert_array_equal(most, np.fmax.reduceat(high, starts, axis=1))
    np.testing.assert_array_equal(low, before)
