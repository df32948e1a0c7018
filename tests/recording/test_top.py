"""The top says in a few thousand cells what all rows say, and costs a fixed size."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scripted_runs import MS, step_rows

from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.recording.container import Container, Damaged, pack
from gpu_util_callback.recording.fold import FAR, Fold
from gpu_util_callback.recording.segments import Segment, complete
from gpu_util_callback.recording.summary import ColumnDistributions, Distribution
from gpu_util_callback.recording.top import SAMPLE_CELLS, STEP_CELLS, Top, packed, statistics

START = 1_700_000_000_000_000_000


def brute(keys, values, width):
    found = {}
    for cell in np.unique(keys // width):
        part = values[:, keys // width == cell]
        known = ~np.isnan(part)
        low, high = np.nanmin(part, 1), np.nanmax(part, 1)
        found[int(cell)] = low, high, np.nansum(part, 1), known.sum(1)
    return found


@pytest.mark.parametrize("pieces", [1, 7, 400])
@pytest.mark.parametrize("width", [1, 3])
def test_folding_gives_what_reducing_at_once_gives(pieces, width):
    random = np.random.default_rng(pieces)
    keys = np.sort(random.integers(0, 5_000, 3_000))
    values = random.normal(100, 30, (2, 3_000)).round(3)
    values[1, ::7] = np.nan
    fold = Fold(64, width)
    for part in np.array_split(np.arange(3_000), pieces):
        mixed = random.permutation(part) if pieces < 400 else part
        fold.add(
            keys[mixed],
            **statistics("ab", values[:, mixed]),
            first=("k", keys[None, mixed]),
            last=("k", keys[None, mixed]),
            sum=("k", keys[None, mixed]),
        )
    assert fold.used <= 64
    assert fold.width == {1: 128, 3: 96}[width]
    expected = brute(keys, values, fold.width)
    for cell in range(fold.used):
        inside = keys[keys // fold.width == cell]
        low, high, total, count = (fold.matrix(part)[:, cell] for part in ("low", "high", "total", "count"))
        if len(inside):
            for found, truth in zip((low, high, total, count), expected[cell], strict=True):
                assert found == pytest.approx(truth)
            places = [fold.of(part, "k")[cell] for part in ("first", "last", "sum")]
            assert places == [inside[0], inside[-1], inside.sum()]
        else:
            assert np.isnan(low).all() and not count.any()
            assert fold.of("first", "k")[cell] == FAR


@pytest.mark.parametrize("begin", [0, 1, 6, 7, 1_000_001])
def test_a_stretch_that_begins_late_has_cells_as_narrow_as_one_that_begins_at_once(begin):
    """And they are aligned as those of the whole run are."""
    keys = begin + np.arange(1_000)
    fold, pieces = Fold(16, first=None), Fold(16, first=None)
    fold.add(keys, first=("k", keys[None]), sum=("k", keys[None]))
    for part in np.array_split(keys, 77):
        pieces.add(part, first=("k", part[None]), sum=("k", part[None]))
    assert fold.width in (64, 128)
    for found in (fold, pieces):
        assert found.of("sum", "k").sum() == keys.sum()
        numbers = found.of("first", "k") // found.width
        assert (numbers == found.first + np.arange(found.used)).all()
        assert (found.of("first", "k")[1:] % found.width == 0).all()


def test_a_column_that_appears_later_is_absent_before():
    fold = Fold(8)
    fold.add(np.array([0, 1]), **statistics(["a"], np.array([[1.0, 2.0]])))
    fold.add(np.array([2]), **statistics(["b"], np.array([[5.0]])))
    low = fold.matrix("low", ["b", "a", "c"])
    np.testing.assert_array_equal(low, [[np.nan, np.nan, 5], [1, 2, np.nan], [np.nan, np.nan, np.nan]])
    assert fold.columns("low") == ["a", "b"]
    assert fold.matrix("count", ["c"]).tolist() == [[0, 0, 0]]


def test_a_long_runs_top_has_a_fixed_size_and_the_rows_extremes(make_writer, tmp_path, scripted_time):
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
        sizes.append((Path(writer.path) / "top.npz").stat().st_size)
    writer.close("ended")
    assert max(sizes) < 3 * sizes[5]
    (found,) = read_recordings(tmp_path / "run")
    top = found.top
    assert STEP_CELLS // 2 < top.steps.fold.used <= STEP_CELLS
    wait = top.steps.fold.of("high", "input_wait_ns")
    assert wait.max() == np.float32(777 * MS)
    assert int(wait.argmax()) == (17 * 4_000 + 1_234) // top.steps.fold.width
    assert top.steps.fold.of("count", "duration_ns").sum() == blocks * 4_000
    # Every cell of steps tells when its first step began, to the nanosecond.
    starts = np.concatenate([rows["start_ns"] for rows in steps]) - found.start_ns
    assert (top.steps.fold.of("first", "start_ns") - found.start_ns == starts[:: top.steps.fold.width]).all()
    numbers = np.arange(0, blocks * 4_000, 1_111)
    assert np.abs(top.start_of(numbers) - starts[numbers]).max() < 1e9
    assert np.isnan(top.start_of(np.array([blocks * 4_000])))
    assert np.abs(top.step_at(starts[numbers]) - numbers).max() <= top.steps.fold.width
    # Samples are exact on their own axis.
    gpu = top.group("gpu0")
    assert SAMPLE_CELLS // 4 < gpu.used <= SAMPLE_CELLS
    assert gpu.of("count", "utilization_pct").sum() == blocks * 200
    cell = int((steps[15]["start_ns"][2_000] - found.start_ns) // gpu.width)
    assert gpu.of("low", "utilization_pct")[cell] == 15


def test_a_damaged_top_is_made_again_from_the_segments_once(make_writer, tmp_path, scripted_time, monkeypatch):
    writer = make_writer()
    writer.append("steps", step_rows(500))
    writer.append_samples("gpu0", ["power_mw"], START + np.arange(20), np.full((20, 1), 7.0))
    scripted_time.advance(3)
    writer.close("ended")
    whole = read_recordings(tmp_path / "run")[0].summary
    path, asked, read = Path(writer.path) / "top.npz", [], Recording._read
    content = path.read_bytes()
    monkeypatch.setattr(Recording, "_read", lambda one, name: asked.append(name) or read(one, name))
    for damaged in (content[: len(content) // 2], b"", None, bytes(len(content))):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        asked.clear()
        (found,) = read_recordings(tmp_path / "run")
        for _ in range(3):
            assert (found.top.step_range, len(found.segments)) == ((0, 499), 1)
            assert found.summary == whole
            found.longest_phases(9)
        assert [p.path for p in found.problems] == [str(path)]
        assert "reading all segments instead" in found.problems[0].message
        assert asked.count("top.npz") == 1
    path.write_bytes(content)
    manifest = Path(writer.path) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "flushes": 99}))
    assert found.refresh()
    assert found.top.step_range[1] == 499
    assert asked.count("top.npz") == 2


def test_quantiles_are_within_a_percent():
    zeros = Distribution()
    assert zeros.result() == {"count": 0}
    zeros.add(np.array([0.0, 0, 0, 50]))
    assert zeros.result()["p50"] == 0 and zeros.result()["p99"] == pytest.approx(50, rel=0.01)
    random = np.random.default_rng(0)
    values = random.lognormal(15, 2, 50_000)
    one = Distribution()
    for part in np.array_split(values, 13):
        one.add(part)
    one.add(np.array([np.nan]))
    kept = ColumnDistributions()
    kept._of["host", "a"] = one
    top = Top(0)
    top.summary = kept
    found = Top.unpack(Container(packed(top.saved())), fail).summary.result()["host"]["a"]
    assert found["count"] == 50_000
    assert found["mean"] == pytest.approx(values.mean())
    assert found["max"] == values.max()
    for percent in (5, 50, 95, 99):
        assert found[f"p{percent}"] == pytest.approx(np.percentile(values, percent), rel=0.011)


def fail(error):
    raise error


def test_rows_added_later_are_folded_in_when_somebody_looks():
    def rows(first, count, columns):
        steps = complete("steps", step_rows(count, first=first, start_ns=START + first * 10 * MS))
        times = START + np.arange(first, first + count, 3) * 10 * MS
        values = {name: times % 1_000 + at for at, name in enumerate(columns)}
        return {"steps": steps}, {"gpu0": {"time_ns": times, **values}}

    early, late = rows(0, 900, ["a"]), rows(900, 2_600, ["b", "a"])
    whole = Top(START)
    whole.add(*early)
    stored = Top.unpack(Container(packed(whole.saved())), fail)
    grown, before = stored.with_rows(*late), packed(whole.saved())
    whole.add(*late)
    assert not grown.samples
    assert grown.step_range == whole.step_range == (0, 3_499)
    assert grown.groups == ["gpu0"] and grown.group("gpu1") is None
    assert grown.summary.result() == whole.summary.result()
    for found, truth in ((grown.steps.fold, whole.steps.fold), (grown.group("gpu0"), whole.group("gpu0"))):
        assert (found.width, found.used) == (truth.width, truth.used)
        for part in ("low", "high", "count", "first", "last", "sum" if truth is whole.steps.fold else "total"):
            assert found.columns(part) == truth.columns(part)
            np.testing.assert_allclose(found.matrix(part), truth.matrix(part), rtol=1e-6)
    assert packed(stored.saved()) == before, "what was stored stays as it is"


def test_a_flush_costs_its_own_segment_and_not_the_top(make_writer, tmp_path, scripted_time, monkeypatch):
    """What a tab that is kept open asks for every two seconds of a live run."""
    work = Counter()

    def watch(owner, name, key):
        real = getattr(owner, name)

        def watched(*arguments):
            work[key] += 1
            return real(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(Top, "unpack", "unpacked")
    watch(Top, "group", "samples")
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
        assert found.top.step_range == (0, done - 1)
        assert work["samples"] == 0
        assert work["opened"] <= 1 and work["unpacked"] <= 1
        if covered == before:
            assert work["unpacked"] == 0, "what is sealed was read again"
        before = covered
        assert (found.steps["step"] == np.arange(done)).all()
        assert (found.samples["gpu3"]["power_mw"] == np.repeat(np.arange(flush + 1), 20)).all()
    assert covered > 1 and found.problems == []
    assert found.top.group("gpu2").of("count", "power_mw").sum() == 70 * 20


def changed(data, member, change):
    """A container whose member of JSON is another one."""
    container = Container(data)
    arrays = {name: container.array(name) for name in container.names}
    versions, about = json.loads(arrays[member].tobytes())
    change(about)
    arrays[member] = np.frombuffer(json.dumps([versions, about]).encode(), np.uint8)
    return Container(pack({}, arrays))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fold: fold.__setitem__(0, 1 << 40),  # cells
        lambda fold: fold.__setitem__(0, 7),
        lambda fold: fold.__setitem__(1, 0),  # their width
        lambda fold: fold.__setitem__(1, 1 << 62),
        lambda fold: fold.__setitem__(1, 1.5),
        lambda fold: fold.__setitem__(2, -1),  # the first one
        lambda fold: fold.__setitem__(2, None),
        lambda fold: fold.__setitem__(3, STEP_CELLS + 1),  # those in use
        lambda fold: fold.__setitem__(3, 51),
        lambda fold: fold.__setitem__(4, {"low": [["a"] * 5_000, 0]}),
        lambda fold: fold.__setitem__(4, {"low": [["a"], 0]}),
        lambda fold: fold.__setitem__(4, None),
        lambda fold: fold[4]["sum"].__setitem__(1, -8),
        lambda fold: fold[4].update(else_=[["a"], 0]),
        # without a column that is always there
        lambda fold: fold[4].pop("low"),
        lambda fold: fold[4].pop("high"),
        lambda fold: fold[4]["first"][0].__setitem__(0, "else"),
        lambda fold: fold[4]["last"][0].__setitem__(0, "else"),
    ],
)
def test_cells_that_cannot_be_make_the_top_a_damaged_one(spoil):
    top = Top(START)
    top.add({"steps": complete("steps", step_rows(50))}, {})
    spoilt = changed(packed(top.saved()), "state/state", lambda about: spoil(about["steps"]["fold"]))
    with pytest.raises(Damaged):
        Top.unpack(spoilt, fail)


def test_a_damaged_group_of_samples_is_named_and_empty():
    top, problems = Top(START), []
    times = START + np.arange(50) * 10**8
    top.add({}, {group: {"time_ns": times, "a": times % 9.0} for group in ("gpu0", "gpu1")})
    spoilt = changed(packed(top.saved()), "gpu0/state", lambda about: about["fold"].__setitem__(3, 10**6))
    found = Top.unpack(spoilt, problems.append)
    assert found.group("gpu1").of("count", "a").sum() == 50 and not problems
    assert found.group("gpu0").used == 0 and len(problems) == 1
