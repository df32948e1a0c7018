"""Tiles of a run that grows, whose columns come later, or that nobody looks at any more."""

import numpy as np
from make_recording import SyntheticRun, make_recording
from scripted_runs import ScriptedTime, step_rows
from tile_reply import reduced
from tile_reply import settled_tile as ask

from gpu_util_callback.recording import RecordingWriter, read_recordings
from tensorboard_plugin.lanes import lanes_of
from tensorboard_plugin.tiles import server as server_module
from tensorboard_plugin.tiles.server import TileServer


def test_a_growing_run_gives_the_same_tiles_as_a_finished_one(tmp_path):
    run = SyntheticRun(tmp_path, "thirds", 2_000, 1, step_ms=5.0)
    run.advance(37)
    (live,) = read_recordings(tmp_path)
    server = TileServer()
    lanes = [lane["id"] for lane in lanes_of(live)]
    revisions = set()
    while run.done < 2_000:
        run.advance(min(130, 2_000 - run.done))
        assert live.refresh()
        reply = ask(server, live, "step", 3, 0, 300, lanes)
        revisions.add(reply.header["revision"])
        known = ~np.isnan(reply.series[("steps", "step")][0])
        assert known.sum() == -(-run.done // 8)
    assert len(revisions) > 10
    run.close()
    live.refresh()
    for axis, level in (("step", 0), ("step", 5), ("time", 21), ("time", 26)):
        grown = ask(server, live, axis, level, 0, 2_000, lanes)
        fresh = ask(TileServer(), live, axis, level, 0, 2_000, lanes)
        assert grown.header == fresh.header
        for key, values in fresh.series.items():
            np.testing.assert_allclose(np.stack(grown.series[key]), np.stack(values), 1e-5)


def test_samples_that_run_ahead_of_the_steps_wait_for_theirs(tmp_path):
    """The sampler's rows are written at once, the steps' when the ring is drained."""
    script = ScriptedTime()
    writer = RecordingWriter(tmp_path, {}, clock=script.clock())
    start = writer.facts["started_ns"]
    steps = step_rows(100, start_ns=start)
    end = int(steps["start_ns"][-1] + steps["duration_ns"][-1])
    times = np.arange(start, end, 1_000_000)
    writer.append("steps", {name: values[:40] for name, values in steps.items()})
    writer.append_samples("gpu0", ["power_mw"], times, np.arange(len(times))[:, np.newaxis])
    writer.flush()
    (one,) = read_recordings(tmp_path)
    server = TileServer()
    lane = ("gpu0:power_mw", "power_mw")
    by_step = ask(server, one, "step", 0, 0, 100, [lane[0]]).series[lane]
    assert not np.isnan(by_step[2][:40]).any()
    assert np.isnan(by_step[2][40:]).all()
    by_time = ask(server, one, "time", 20, 0, 500, [lane[0]]).series[lane]
    assert np.nanmax(by_time[1]) == len(times) - 1
    writer.append("steps", {name: values[40:] for name, values in steps.items()})
    writer.close("ended")
    one.refresh()
    by_step = ask(server, one, "step", 0, 0, 100, [lane[0]]).series[lane]
    at = np.searchsorted(steps["start_ns"], times, "right") - 1
    truth = reduced(at, np.arange(len(times)).astype(float), 0, 0, 100)
    np.testing.assert_allclose(np.stack(by_step), truth, rtol=1e-6)


def test_columns_that_appear_later(tmp_path):
    script = ScriptedTime()
    writer = RecordingWriter(tmp_path, {}, clock=script.clock())
    start = writer.facts["started_ns"]
    writer.append_samples("gpu0", ["a_pct"], start + np.arange(5), np.full((5, 1), 1.0))
    writer.flush()
    (one,) = read_recordings(tmp_path)
    server = TileServer()
    ask(server, one, "time", 0, 0, 10, ["gpu0:a_pct"])
    writer.append_samples("gpu0", ["b_pct", "a_pct"], start + 5 + np.arange(5), np.tile([2.0, 3.0], (5, 1)))
    writer.flush()
    one.refresh()
    reply = ask(server, one, "time", 0, 0, 10, ["gpu0:a_pct", "gpu0:b_pct"])
    assert reply.series[("gpu0:a_pct", "a_pct")][2].tolist() == [1] * 5 + [3] * 5
    np.testing.assert_array_equal(reply.series[("gpu0:b_pct", "b_pct")][2], [np.nan] * 5 + [2.0] * 5)


def test_what_is_alike_is_sent_once(tmp_path):
    make_recording(tmp_path, "thirds", steps=3_000, gpus=2, step_ms=6.0)
    (recording,) = read_recordings(tmp_path)
    server, lanes = TileServer(), ["steps", "input_wait"]
    fine, coarse = (ask(server, recording, "step", level, 0, 90, lanes) for level in (0, 5))
    assert all(one["alike"] for one in fine.header["series"])
    body = [one for one in coarse.header["series"] if one["name"] == "step"]
    assert "alike" not in body[0]
    low, high, _ = coarse.series["steps", "step"]
    assert (low < high).all()


def test_recordings_nobody_looks_at_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_RECORDINGS", 2)
    for name in "abc":
        make_recording(tmp_path / name, "healthy", steps=300)
    found = read_recordings(tmp_path)
    server = TileServer()
    for one in found:
        ask(server, one, "step", 0, 0, 4, ["steps"])
    assert [server._tiles.get(one.id) is not None for one in found] == [False, True, True]
