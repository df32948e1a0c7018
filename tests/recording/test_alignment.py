"""Clocks of workers on one axis: estimated where steps end together, and nowhere else."""

import numpy as np
import pytest
from made_up_rows import step_table
from scripted_runs import MS, ScriptedTime

from gpu_util_callback.recording import RecordingWriter, alignment, read_recordings
from gpu_util_callback.recording.alignment import session_clocks
from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.segments import Segment

START = 1_700_000_000_000_000_000


def work(n, seed, mean_ms=20.0, spread_ms=3.0):
    """What each step takes by itself, float64[n] in ns."""
    return np.random.default_rng(seed).normal(mean_ms, spread_ms, n).clip(1) * MS


def synchronous(n, workers, seed=1, noise_ms=0.15, **how):
    """True ends of steps, float64[workers, n]: each step lasts as long as its slowest worker."""
    longest = np.max([work(n, seed * 100 + w, **how) for w in range(workers)], axis=0)
    noise = np.random.default_rng(seed).exponential(noise_ms, (workers, n)) * MS
    return np.cumsum(longest)[None] + noise


def write(folder, ends, rank, workers, offset_ms=0.0, drift=0.0, steps=None, **facts):
    """One worker's recording: true times as its own clock has them."""
    ends = (1 + drift) * ends + offset_ms * MS
    starts = np.concatenate([[offset_ms * MS - 5 * MS], ends[:-1]])
    count = len(ends) if steps is None else steps
    scripted = ScriptedTime(wall=START)
    facts = {
        "rank": rank,
        "world_size": workers,
        "job": "j",
        "fit_index": 0,
        "started_ns": START + round(starts[0]),
        **facts,
    }
    writer = RecordingWriter(folder, facts, clock=scripted.clock())
    for begin in range(0, count, 50_000):
        at = slice(begin, min(begin + 50_000, count))
        rows = step_table(START + round(starts[begin]), begin, body_ns=np.rint(ends[at] - starts[at]))
        writer.append("steps", rows)
        writer.flush()
        scripted.advance(61)
    writer.update(ended_ns=START + round(ends[count - 1]))
    writer.close("ended")


def clocks_of(folder):
    recordings = read_recordings(folder)
    assert len({one.session for one in recordings}) == 1
    return session_clocks(recordings)


def stalled(ends):
    """A worker that ends some steps late: it writes checkpoints."""
    stalls = np.zeros(ends.shape[1])
    stalls[[40, 41, 200]] = 800 * MS
    return ends + np.stack([0 * stalls, stalls])


@pytest.mark.parametrize(
    ("offset_ms", "steps", "disturbed"),
    [
        *((offset_ms, 400, None) for offset_ms in (35.0, -2000.0, 0.0, 0.4)),
        (35.0, 120, None),  # the worker was killed
        (-20.0, 400, stalled),
    ],
)
def test_an_offset_is_found_from_common_steps(tmp_path, offset_ms, steps, disturbed):
    ends = synchronous(400, 2)
    ends = ends if disturbed is None else disturbed(ends)
    write(tmp_path, ends[0], 0, 2)
    write(tmp_path, ends[1], 1, 2, offset_ms, steps=steps)
    clocks = clocks_of(tmp_path)
    assert clocks.reference == 0
    one = next(one for one in clocks.offsets if one.rank == 1)
    assert one.offset_ns / MS == pytest.approx(offset_ms, abs=0.1 if steps == 400 else 0.2)
    assert 0.05 < one.scatter_ns / MS < 0.4
    assert one.steps == steps
    assert one.drift == 0.0
    said = clocks.sentence(one)
    assert bool(said) == (abs(offset_ms) >= 1)
    if (offset_ms, steps) == (35, 400):
        assert said.startswith("Clock of worker 1: 35.0 ms ahead of worker 0's; shown shifted by -3")
        assert "estimated from 400 common steps" in said


def test_a_drifting_clock_is_followed(tmp_path):
    ends = synchronous(5000, 2)
    write(tmp_path, ends[0], 0, 2)
    write(tmp_path, ends[1], 1, 2, offset_ms=35, drift=150e-6)
    one = clocks_of(tmp_path).offsets[1]
    assert one.drift == pytest.approx(150e-6, rel=0.02)
    for step in (10, 2500, 4990):
        true = START + ends[0, step]
        theirs = START + (1 + 150e-6) * ends[1, step] + 35 * MS
        assert one.on_reference(round(theirs)) == pytest.approx(true, abs=1.5 * MS)


@pytest.mark.parametrize("odd", [0, 2, 3])
def test_of_several_workers_the_odd_clock_is_named(tmp_path, odd):
    ends = synchronous(300, 4)
    for rank in range(4):
        write(tmp_path, ends[rank], rank, 4, -35.0 if rank == odd else 0.02 * rank)
    clocks = clocks_of(tmp_path)
    found = {one.rank: one.offset_ns / MS for one in clocks.offsets}
    assert clocks.reference != odd
    assert found.pop(odd) == pytest.approx(-35, abs=0.3)
    assert all(abs(offset) < 0.3 for offset in found.values())


def test_steps_that_cannot_be_read_are_done_without(tmp_path, monkeypatch):
    ends = synchronous(400, 3)
    for rank in range(3):
        write(tmp_path, ends[rank], rank, 3, offset_ms=35 * (rank == 2))
    whole, count = Segment.table, iter(range(1000))

    def table(segment, *args):
        if next(count) == 1:  # the second worker's
            raise Damaged("tables/steps: garbled")
        return whole(segment, *args)

    recordings = read_recordings(tmp_path)
    monkeypatch.setattr(Segment, "table", table)
    clocks = session_clocks(recordings)
    assert clocks.unknown == ((1, "only 0 common steps, 100 are needed"),)
    assert [one.rank for one in clocks.offsets] == [0, 2]
    assert clocks.offsets[1].offset_ns / MS == pytest.approx(35, abs=0.2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shared", [0.0, 3.0])
def test_workers_that_do_not_wait_for_each_other_are_not_aligned(tmp_path, seed, shared):
    """Ranks of a sweep; with `shared`, on the same batches, whose lengths differ alike."""
    common = np.random.default_rng(900).normal(0, 1, 400)
    for rank in range(2):
        own = work(400, 2 * seed + rank + 50, spread_ms=0.3)
        write(tmp_path, np.cumsum(own + shared * MS * common), rank, 2, 35.0 * rank)
    clocks = clocks_of(tmp_path)
    assert clocks.offsets == () and clocks.reference is None
    assert clocks.unknown == ((1, "its steps do not end together with the others'"),)


def test_a_few_steps_are_too_few_and_whole_steps_ahead_are_no_fast_clock(tmp_path):
    ends = synchronous(400, 2)
    for rank in range(2):
        write(tmp_path / "few", ends[rank, :90], rank, 2)
        # The first one's step k ends when the device ends step k + 5.
        write(tmp_path / "ahead", (ends[0, 5:], ends[1, :-5])[rank], rank, 2)
    assert clocks_of(tmp_path / "few").unknown == ((1, "only 90 common steps, 100 are needed"),)
    assert clocks_of(tmp_path / "ahead").offsets == ()


def test_a_process_on_its_own_has_no_clock_to_be_held_against(tmp_path):
    write(tmp_path, synchronous(200, 1)[0], 0, 1)
    assert clocks_of(tmp_path) == alignment.Clocks(None, (), ())


def test_of_a_long_run_some_blocks_are_read(tmp_path, monkeypatch):
    ends = synchronous(500_000, 2)
    write(tmp_path, ends[0], 0, 2)
    write(tmp_path, ends[1], 1, 2, offset_ms=35, drift=-40e-6)
    recordings = read_recordings(tmp_path)
    one = session_clocks(recordings).offsets[1]
    assert one.drift == pytest.approx(-40e-6, rel=0.02)
    assert one.steps == alignment.BLOCKS * alignment.BLOCK
    middle = START + ends[0, 250_000]
    theirs = START + (1 - 40e-6) * ends[1, 250_000] + 35 * MS
    assert one.on_reference(round(theirs)) == pytest.approx(middle, abs=1.5 * MS)


def test_clocks_that_differ_by_more_than_the_run_lasted_do_not_split_the_session(tmp_path):
    """A start of a job is known by its ranks; by times only where those do not tell."""
    ends = synchronous(200, 2)  # four seconds
    for start in range(2):
        for rank in range(2):
            write(tmp_path, ends[rank] + 40e9 * start, rank, 2, -9000.0 * rank)
    sessions = {}
    for one in read_recordings(tmp_path):
        sessions.setdefault(one.session, []).append(one)
    assert [sorted(one.rank for one in ranks) for ranks in sessions.values()] == [[0, 1], [0, 1]]
    for ranks in sessions.values():
        assert abs(ranks[0].start_ns - ranks[1].start_ns) < 10e9
        assert session_clocks(ranks).offsets[1].offset_ns / MS == pytest.approx(-9000, abs=0.2)


def test_a_rank_that_did_not_come_back_joins_no_later_start(tmp_path):
    ends = synchronous(200, 2)
    write(tmp_path, ends[0], 0, 2)  # the other one died before it recorded anything
    for rank in range(2):
        write(tmp_path, ends[rank] + 30e9, rank, 2, -20.0 * rank)
    sessions = {}
    for one in read_recordings(tmp_path):
        sessions.setdefault(one.session, []).append(one.rank)
    assert sorted(map(sorted, sessions.values())) == [[0], [0, 1]]
