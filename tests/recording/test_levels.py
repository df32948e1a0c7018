"""Thinned rows, longest phases and the index of tables: what a long run's first view rests on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runs import MS, step_rows

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording import writer as writer_module
from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.levels import LevelsBuilder, LevelsFile, join
from gpu_util_callback.recording.schema import STEP_SERIES
from gpu_util_callback.recording.segments import LONGEST

START = 1_700_000_000_000_000_000


def built(*parts):
    builder = LevelsBuilder(START)
    for tables, samples in parts:
        builder.add(tables, samples)
    return builder


def samples(count, columns=("a_pct",), hz=10, start=START, seed=0):
    values = np.random.default_rng(seed).integers(0, 100, (len(columns), count)).astype(float)
    times = start + np.arange(count) * (1_000_000_000 // hz)
    return {"gpu0": {"time_ns": times, **dict(zip(columns, values, strict=True))}}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(0, 1_000))
def test_entries_hold_every_row_once_with_its_extremes(lengths, first):
    """However the rows came in parts: min, max, mean and count of each bucket of 32 steps."""
    rows = step_rows(sum(lengths), first=first, start_ns=START, seed=first)
    builder, at = LevelsBuilder(START), 0
    for length in lengths:
        builder.add({"steps": {k: v[at : at + length] for k, v in rows.items()}}, {})
        at += length
    entries = builder.entries()["steps"]
    assert entries.rows.sum() == len(rows["step"])
    assert (np.diff(entries.step) > 0).all()
    wait = STEP_SERIES.index("input_wait_ns")
    for bucket in np.unique(rows["step"] >> 5):
        mine = entries.step >> 5 == bucket
        truth = rows["input_wait_ns"][rows["step"] >> 5 == bucket]
        assert entries.low[wait, mine].min() == np.float32(truth.min())
        assert entries.high[wait, mine].max() == np.float32(truth.max())
        mean = (entries.mean[wait, mine] * entries.rows[mine]).sum() / entries.rows[mine].sum()
        assert mean == pytest.approx(truth.mean(), rel=1e-5)


def test_a_pause_ends_an_entry():
    rows = step_rows(64, start_ns=START)
    rows["start_ns"][40:] += 60_000 * MS  # a validation after 40 steps
    entries = built(({"steps": rows}, {})).entries()["steps"]
    assert entries.step.tolist() == [0, 32, 40]
    assert entries.time[2] == rows["start_ns"][40] - START
    assert entries.end[1] == rows["start_ns"][39] + rows["duration_ns"][39] - START
    assert entries.folded(3).step.tolist() == [0, 40]


def test_samples_are_thinned_by_their_pace():
    for hz, rows in ((10, 500), (100, 5_000), (2, 200)):
        entries = built(({}, samples(rows, hz=hz))).entries()["gpu0"]
        typical = np.median(entries.rows)
        assert 16 <= typical <= 32, hz
        assert (np.diff(entries.time >> entries.bits) == 1).all()


def test_a_levels_file_comes_back_and_columns_may_come_later():
    builder = built(
        ({"steps": step_rows(500, start_ns=START)}, samples(300)),
        ({}, samples(300, ("b_mw", "a_pct"), start=START + 30_000_000_000)),
    )
    entries = builder.entries()
    file = LevelsFile(builder.pack(), START)
    assert file.sizes == {group: (one.columns, len(one)) for group, one in entries.items()}
    for group, one in entries.items():
        found = file.entries(group)
        for name in ("time", "end", "step", "rows", "low", "high", "mean"):
            np.testing.assert_array_equal(getattr(found, name), getattr(one, name))
    late = entries["gpu0"]
    assert np.isnan(late.low[late.columns.index("b_mw"), 0])
    assert not np.isnan(late.low[late.columns.index("b_mw"), -1])
    assert len(join([late, late])) == 2 * len(late)
    shifted = LevelsFile(builder.pack(), START - 7).entries("steps")
    assert shifted.time[0] == entries["steps"].time[0] + 7


def test_a_damaged_levels_file_is_refused():
    data = built(({"steps": step_rows(500, start_ns=START)}, samples(300))).pack()
    random, refused = np.random.default_rng(2), 0
    for _ in range(60):
        broken = bytearray(data)
        for at in random.integers(0, len(data), 4):
            broken[at] ^= int(random.integers(1, 256))
        cut = bytes(broken[: int(random.integers(1, len(data) + 1))])
        try:
            file = LevelsFile(cut, START)
            for group in file.sizes:
                file.entries(group)
        except Damaged as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 50  # a flipped bit in what nobody reads does no harm


def test_a_long_run_writes_levels_and_a_short_one_does_not(
    make_writer, tmp_path, scripted_time, monkeypatch
):
    monkeypatch.setattr(writer_module, "LEVELS_CELLS", 20_000)
    writer = make_writer()
    start, seen = writer.facts["started_ns"], 0
    files = []
    for block in range(9):
        rows = step_rows(1_000, first=seen, start_ns=start, seed=block)
        start, seen = int(rows["start_ns"][-1] + rows["duration_ns"][-1]), seen + 1_000
        writer.append("steps", rows)
        if block in (2, 6):
            writer.append("kernels", {"window": [block], "name": ["k"], "total_ns": [5]})
        scripted_time.advance(61)
        writer.flush()
        files.append(len(list(Path(writer.path).glob("levels-*.npz"))))
    writer.close("ended")
    assert files == sorted(files)
    assert files[0] == 0
    (one,) = read_recordings(tmp_path / "run")
    covered = -1
    for first, last in one.level_files:
        assert first == covered + 1
        covered = last
        rows = sum(info.steps for info in one.segments if first <= info.first <= last)
        assert one.open_levels(first, last).entries("steps").rows.sum() == rows
        assert 7 * rows >= 20_000
    assert len(one.level_files) >= 2
    opened = []
    real = type(one)._read
    monkeypatch.setattr(type(one), "_read", lambda s, name: opened.append(name) or real(s, name))
    assert one.kernels["window"].tolist() == [2, 6]
    assert len([name for name in opened if name.startswith("segment")]) == 2 < len(one.segments)


def test_segments_are_not_merged_across_the_end_of_a_levels_file(
    make_writer, tmp_path, scripted_time, monkeypatch
):
    monkeypatch.setattr(writer_module, "LEVELS_CELLS", 7 * 200)
    writer = make_writer()
    for block in range(80):
        writer.append("steps", step_rows(10, first=block * 10))
        scripted_time.advance(61)
        writer.flush()
    writer.close("ended")
    (one,) = read_recordings(tmp_path / "run")
    assert one.steps["step"].tolist() == list(range(800))
    ends = {last for _, last in one.level_files}
    assert len(ends) > 1
    assert any(info.first != info.last for info in one.segments), "some were merged"
    for info in one.segments:
        assert not any(info.first <= end < info.last for end in ends)


def test_the_longest_phases_are_at_hand(make_writer, tmp_path, scripted_time, monkeypatch):
    writer = make_writer()
    random = np.random.default_rng(1)
    lengths = random.permutation(LONGEST + 500) * 1_000 + 1
    for part in np.array_split(lengths, 5):
        starts = START + np.arange(len(part)) * 10_000_000
        writer.append("phases", {
            "kind": ["callback"] * len(part), "name": [f"c{n}" for n in part.tolist()],
            "start_ns": starts, "end_ns": starts + part, "account": ["callbacks"] * len(part),
        })  # fmt: skip
        scripted_time.advance(61)
        writer.flush()
    writer.append("phases", {"kind": ["epoch"], "name": ["open"], "start_ns": [START],
                             "end_ns": [START + 10**12]})  # fmt: skip
    writer.flush()
    (one,) = read_recordings(tmp_path / "run")
    found = one.longest_phases(2_000)
    truth = np.sort(one.phases["end_ns"] - one.phases["start_ns"])[-2_000:]
    assert np.sort(found["end_ns"] - found["start_ns"]).tolist() == truth.tolist()
    assert found["name"][-1] == "open"
    # As older versions wrote it: without them, all phases are read.
    monkeypatch.setattr("gpu_util_callback.recording.reader.stored_phases", lambda file: None)
    (old,) = read_recordings(tmp_path / "run")
    again = old.longest_phases(2_000)
    assert again["start_ns"].tolist() == found["start_ns"].tolist()
