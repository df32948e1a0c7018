"""Tiles say what the rows say, at every zoom; a long run's come from little memory and few files."""

import gzip
import json
import shutil
import threading

import numpy as np
import pytest
from long_recording import METRICS, make_long_recording
from make_recording import make_recording
from plugin_app import PluginApp
from tile_reply import decode_tile, reduced, settled_tile
from waiting import wait_until

from gpu_util_callback.diagnosis.engine import RULES_VERSION
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording import writer as writer_module
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.top import SampleCells
from tensorboard_plugin.tiles import recording_tiles
from tensorboard_plugin.tiles.recording_tiles import Recent, RecordingTiles, View
from tensorboard_plugin.tiles.server import TileServer

STEPS = 60_000
LANES = ["steps", "input_wait", "gpu0:utilization_pct", "gpu1:power_mw"]


@pytest.fixture(scope="module", params=["with stretches"])
def path(request, tmp_path_factory):
    """A run of 60,000 steps, with tops of its stretches, or with one alone; or a short one."""
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "_"))
    if request.param == "short":
        make_recording(folder, "thirds", steps=3_000, gpus=2, step_ms=6.0)
        yield folder
        return
    with pytest.MonkeyPatch.context() as context:
        context.setattr(SampleCells, "CAPACITY", 2048)  # fewer than there are samples, so that a view may need rows
        values = 50_000 if request.param == "with stretches" else 1 << 62
        context.setattr(writer_module, "STRETCH_VALUES", values)
        context.setattr(writer_module, "SEAL_NS", 20 * 10**9)
        make_long_recording(folder / "run", STEPS, gpus=2, metrics=len(METRICS), chunk=4_000)
        yield folder


LENGTHS = pytest.mark.parametrize("path", ["short", "with stretches", "without"], indirect=True, scope="module")
LONG = pytest.mark.parametrize("path", ["with stretches", "without"], indirect=True, scope="module")


@pytest.fixture
def recording(path):
    (one,) = read_recordings(path)
    return one


def ask(server, recording, axis, level, first, count, lanes=LANES):
    return decode_tile(gzip.decompress(server.tile(recording, axis, level, first, count, lanes)))


def settled(server, recording, axis, level, first, count, lanes=LANES):
    return settled_tile(server, recording, axis, level, first, count, lanes)


@LENGTHS
@pytest.mark.parametrize("level", [0, 1, 2, 4, 5, 6, 8, 10, 13, 20, 40])
def test_steps_by_step_are_what_the_rows_say(recording, level):
    steps, server = recording.steps, TileServer()
    total = len(steps["step"])
    buckets = (total >> level) + 1
    count = min(2_048, buckets + 1)
    # From the beginning or in the middle, over the end, and beyond it.
    for first in {max(0, buckets // 2 - count // 2), max(0, buckets - count // 2), buckets + 5}:
        reply = settled(server, recording, "step", level, first, count)
        for lane, name in (("steps", "step"), ("steps", "compile"), ("input_wait", "input_wait")):
            column = "body_ns" if name == "step" else f"{name}_ns"
            truth = reduced(steps["step"], steps[column] / 1e6, level, first, count)
            np.testing.assert_allclose(np.stack(reply.series[(lane, name)]), truth, rtol=2e-5, atol=1e-7)
        starts = np.arange(first, first + count) << level
        assert (reply.first_step == starts.astype(float)).all()
        inside = starts < total
        assert np.isnan(reply.start_ns[~inside]).all()
        truth = steps["start_ns"][starts[inside]] - recording.start_ns
        exact = level < 5 or total < STEPS
        np.testing.assert_allclose(reply.start_ns[inside], truth, rtol=0, atol=0 if exact else 20e6)


@LENGTHS
@pytest.mark.parametrize("level", [16, 20, 25, 29, 31, 33, 36, 40])
def test_samples_by_time_are_what_the_rows_say(recording, level):
    samples = recording.samples["gpu1"]
    since = samples["time_ns"] - recording.start_ns
    count = min(2_048, (int(since[-1]) >> level) + 2)
    reply = settled(TileServer(), recording, "time", level, 3, count)
    truth = reduced(since, samples["power_mw"], level, 3, count)
    np.testing.assert_allclose(np.stack(reply.series[("gpu1:power_mw", "power_mw")]), truth, rtol=2e-5)
    assert (reply.start_ns == np.arange(3, 3 + count) * 2.0**level).all()
    starts = recording.steps["start_ns"] - recording.start_ns
    under_way = np.searchsorted(starts, reply.start_ns, "right") - 1
    away = np.abs(reply.first_step - np.clip(under_way, 0, None))
    assert away.max() <= (0 if level <= 20 or len(starts) < STEPS else 64)  # a cell


@LENGTHS
@pytest.mark.parametrize(
    ("axis", "level"), [("step", 3), ("step", 9), ("step", 12), ("time", 22), ("time", 28), ("time", 32)]
)
def test_on_the_other_axis_rows_are_at_most_an_entry_away(recording, axis, level):
    """Samples by step and steps by time: every extreme is there, in its bucket or beside it."""
    steps, samples = recording.steps, recording.samples["gpu0"]
    if axis == "step":
        at = np.searchsorted(steps["start_ns"], samples["time_ns"], "right") - 1
        keys, values = steps["step"][np.clip(at, 0, None)], samples["utilization_pct"]
        lane = ("gpu0:utilization_pct", "utilization_pct")
    else:
        keys, values = steps["start_ns"] - recording.start_ns, steps["callbacks_ns"] / 1e6
        lane = ("steps", "callbacks")
    count = min(2_048, (int(keys[-1]) >> level) + 1)
    first = max(0, ((int(keys[-1]) >> level) - count) // 2)
    reply = settled(TileServer(), recording, axis, level, first, count)
    low, high, mean = reply.series[lane]
    truth = reduced(keys, values, level, first, count)
    if level in (3, 22) or len(steps["step"]) < STEPS:
        np.testing.assert_allclose(np.stack([low, high, mean]), truth, rtol=2e-5)

    def around(part, pick):
        """The extreme of each bucket and its neighbours; those at the edges lack one."""
        padded = np.pad(part, 1, constant_values=np.nan)
        stacked = np.stack([padded[:-2], padded[1:-1], padded[2:]])
        return pick.reduce(stacked, axis=0)

    inner = slice(1, -1)
    known = ~np.isnan(truth[1])[inner]
    assert (around(high, np.fmax)[inner][known] >= truth[1][inner][known] * (1 - 1e-5)).all()
    assert (around(low, np.fmin)[inner][known] <= truth[0][inner][known] * (1 + 1e-5)).all()
    wide = around(truth[1], np.fmax)[inner]
    drawn = ~np.isnan(high)[inner]
    assert (high[inner][drawn] <= wide[drawn] * (1 + 1e-5)).all()
    drawn_all = ~np.isnan(low)
    assert (low[drawn_all] <= mean[drawn_all] * (1 + 1e-5)).all()
    assert (mean[drawn_all] <= high[drawn_all] * (1 + 1e-5)).all()


@LONG
def test_the_first_view_reads_no_segment_and_says_what_is_being_refined(recording, monkeypatch):
    server, opened = TileServer(), []
    read = type(recording)._read
    monkeypatch.setattr(type(recording), "_read", lambda one, name: opened.append(name) or read(one, name))
    monkeypatch.setattr(server._local, "do", lambda *job: None)
    coarse = ask(server, recording, "step", 6, 0, 940)
    by_time = ask(server, recording, "time", 30, 0, 300)
    fine = ask(server, recording, "step", 2, 0, 512)
    last = ask(server, recording, "step", 2, STEPS // 4 - 100, 512)
    assert set(opened) <= {"top.npz"}
    assert "steps" not in coarse.header["refining"]
    assert fine.header["refining"] == LANES
    monkeypatch.undo()
    steps, samples = recording.steps, recording.samples["gpu0"]
    truth = reduced(steps["step"], steps["body_ns"] / 1e6, 6, 0, 940)
    np.testing.assert_allclose(np.stack(coarse.series[("steps", "step")]), truth, rtol=2e-5)
    starts = steps["start_ns"] - recording.start_ns
    known = ~np.isnan(coarse.start_ns)
    assert (coarse.start_ns[known] == starts[::64]).all()
    since = samples["time_ns"] - recording.start_ns
    truth = reduced(since, samples["utilization_pct"], 30, 0, 300)
    found = np.stack(by_time.series[("gpu0:utilization_pct", "utilization_pct")])
    np.testing.assert_allclose(found, truth, rtol=2e-5)
    for values in last.series.values():
        assert not np.isnan(values[0][: 100 - 8]).any()
        assert np.isnan(values[0][100:]).all(), "there are no steps beyond the last"
    # What only repeats a wider bucket holds all that is in it.
    truth = reduced(steps["step"], steps["body_ns"] / 1e6, 2, 0, 512)
    low, high, _ = fine.series[("steps", "step")]
    assert (low <= truth[0] * (1 + 1e-5)).all()
    assert (high >= truth[1] * (1 - 1e-5)).all()


@LONG
def test_a_zoom_opens_the_segments_in_view_alone(recording, monkeypatch):
    run = RecordingTiles(recording, None, Recent(1 << 25))
    opened = []
    read = type(recording)._read
    monkeypatch.setattr(type(recording), "_read", lambda one, name: opened.append(name) or read(one, name))
    wanted = {"gpu0": ["power_mw"], "steps": ["body_ns"], "gpu1": ["power_mw"]}
    revision = recording.revision
    run.answer(revision, wanted, View("step", 0, 30_000, 500))
    segments = [name for name in opened if name.startswith("segment")]
    assert 1 <= len(segments) <= 2, "each once, for all groups"
    run.answer(revision, wanted, View("step", 1, 15_050, 100))
    assert [name for name in opened if name.startswith("segment")] == segments
    opened.clear()
    for view in (View("step", 5, 0, 2_000), View("step", 10, 0, 60)):
        run.answer(revision, {"steps": ["body_ns"]}, view)
    assert opened == []


@LONG
def test_a_wide_view_reads_tops_of_stretches_and_no_segment_under_them(path, recording, monkeypatch):
    stretches = recording._stored_top().stretches
    assert bool(stretches) == path.name.startswith("with_stretches")
    opened = []
    read = type(recording)._read
    monkeypatch.setattr(type(recording), "_read", lambda one, name: opened.append(name) or read(one, name))
    run = RecordingTiles(recording, None, Recent(1 << 25))
    answer = run.answer(recording.revision, {"gpu0": ["power_mw"]}, View("time", 26, 0, 4_000))
    assert answer.bits == {}, "finer than the run's top"
    if stretches:
        assert not any(name.startswith("segment") for name in opened)
    since = recording.samples["gpu0"]["time_ns"] - recording.start_ns
    truth = reduced(since, recording.samples["gpu0"]["power_mw"], 26, 0, 4_000)
    found = np.stack([part[0] for part in answer.ranges["gpu0"]])
    np.testing.assert_allclose(found, truth, rtol=2e-5)


def test_a_long_run_that_goes_on_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "STRETCH_VALUES", 50_000)
    kept = []
    close = writer_module.RecordingWriter.flush
    server, seen = TileServer(), []

    def flush(writer):
        close(writer)
        if not kept:
            kept.extend(read_recordings(tmp_path))
        (one,) = kept
        one.refresh()
        reply = settled(server, one, "step", 5, 0, 1_000, ["steps", "gpu0:power_mw"])
        seen.append(int((~np.isnan(reply.series[("steps", "step")][0])).sum()))

    monkeypatch.setattr(writer_module.RecordingWriter, "flush", flush)
    make_long_recording(tmp_path, 24_000, gpus=1, metrics=8, chunk=2_000, live=True)
    assert seen[:12] == [-(-2_000 * n // 32) for n in range(1, 13)]
    (one,) = kept
    assert one._stored_top().stretches
    for axis, level, lane in (("step", 6, "steps"), ("time", 31, "gpu0:power_mw")):
        grown = settled(server, one, axis, level, 0, 300, [lane])
        fresh = settled(TileServer(), one, axis, level, 0, 300, [lane])
        for key, values in fresh.series.items():
            np.testing.assert_allclose(np.stack(grown.series[key]), np.stack(values), rtol=1e-5)


def test_what_was_made_of_sealed_rows_stays_while_a_run_goes_on(tmp_path, monkeypatch):
    """A view that nobody moves does not become coarse again with every flush."""
    make_long_recording(tmp_path, 24_000, gpus=1, metrics=8, chunk=2_000, live=True)
    (one,) = read_recordings(tmp_path)
    monkeypatch.setattr(recording_tiles, "PATIENCE_S", 0)  # no request waits for rows
    server, early, late = TileServer(), ("step", 1, 500, 400), ("step", 1, 11_500, 400)
    for view in (early, late):
        settled(server, one, *view, ["steps"])
    one.facts = {**one.facts, "flushes": one.facts["flushes"] + 1}
    one._forget()
    assert ask(server, one, *early, ["steps"]).header["refining"] == []
    settled(server, one, *late, ["steps"])  # the open segment: coarse or not, it becomes fine


def test_what_is_being_made_is_not_made_twice(recording, monkeypatch):
    """Its rows are at hand by then: but somebody is at it, on the one core that there may be."""
    server, view = TileServer(), ("step", 2, 3_000, 1_000)
    settled(server, recording, "step", 6, 0, 900)
    go_on, made_by = threading.Event(), []
    made = RecordingTiles._buckets_of

    def slowly(self, *request):
        made_by.append(threading.current_thread())
        found = made(self, *request)
        assert go_on.wait(60)
        return found

    monkeypatch.setattr(RecordingTiles, "_buckets_of", slowly)
    assert ask(server, recording, *view).header["refining"] == LANES
    wait_until(lambda: made_by, 60)
    assert ask(server, recording, *view).header["refining"] == LANES
    go_on.set()
    settled(server, recording, *view)
    assert len(made_by) == 1
    assert made_by[0] is not threading.current_thread()


def test_rows_that_were_read_are_answered_from_at_once(recording, monkeypatch):
    """A view beside one that was looked at just now; one of many files comes coarsely first."""
    server, near, far = TileServer(), ("step", 0, 12_000, 4_000), ("step", 0, 56_000, 900)
    settled(server, recording, *near)
    monkeypatch.setattr(recording_tiles, "PATIENCE_S", 60)  # for few files, a request has time
    read = type(recording)._read
    opened = []
    monkeypatch.setattr(type(recording), "_read", lambda one, name: opened.append(name) or read(one, name))
    assert ask(server, recording, "step", 0, 12_400, 1_800).header["refining"] == []
    assert opened == []
    assert ask(server, recording, "step", 0, 40_000, 900).header["refining"] == []
    assert sum(name.startswith("segment") for name in opened) == 1
    monkeypatch.setattr(recording_tiles, "FEW_SEGMENTS", 0)
    assert ask(server, recording, *far).header["refining"] == LANES
    settled(server, recording, *far)


@LONG
def test_many_ask_at_once_and_all_get_the_same(recording):
    server, replies, errors = TileServer(), {}, []
    requests = [
        ("step", 6, 0, 900),
        ("step", 1, 9_000, 600),
        ("time", 31, 0, 200),
        ("time", 24, 1_000, 900),
        ("step", 3, 2_000, 512),
    ]

    def look(at):
        try:
            for request in requests[at % 5 :] + requests[: at % 5]:
                reply = settled(server, recording, *request)
                replies.setdefault(request, []).append(reply.series[("steps", "step")])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(at,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors[0]
    assert len(replies) == 5
    for same in replies.values():
        assert len(same) == 12
        for other in same[1:]:
            np.testing.assert_array_equal(np.stack(other), np.stack(same[0]))


def test_what_is_kept_of_the_rows_is_bounded(recording):
    cached = Recent(1 << 20)
    run, wanted = RecordingTiles(recording, None, cached), {"steps": ["body_ns", "input_wait_ns"]}
    whole = run.answer(recording.revision, wanted, View("step", 2, 0, 15_000)).ranges["steps"]
    assert 0 < cached._size <= 1 << 20
    steps = recording.steps
    truth = reduced(steps["step"], steps["body_ns"].astype(float), 2, 0, 15_000)
    np.testing.assert_allclose(np.stack([part[0] for part in whole]), truth, rtol=2e-5)


def test_what_was_used_lately_stays():
    recent = Recent(100)
    for key in "abc":
        recent.put(key, key, 30)
    assert recent.get("a") == "a"
    recent.put("d", "d", 30)
    assert [recent.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    recent.put("c", "C", 10)
    assert recent._size == 70
    recent.put("e", "e", 1_000)
    assert (recent.get("a"), recent.get("e"), recent._size) == (None, "e", 1_000)


def test_a_slow_disk_holds_up_no_request(recording, monkeypatch):
    server, view = TileServer(), ("step", 0, 30_000, 500)
    settled(server, recording, "step", 6, 0, 900)
    opened, go_on = type(recording).open_segment, threading.Event()

    def slowly(self, info):
        assert go_on.wait(60)
        return opened(self, info)

    monkeypatch.setattr(type(recording), "open_segment", slowly)
    for _ in range(3):
        assert ask(server, recording, *view).header["refining"] == LANES
    go_on.set()
    assert settled(server, recording, *view).header["refining"] == []


def test_who_has_time_gets_everything_at_once(recording):
    server = TileServer(patient=True)
    for request in (("step", 6, 0, 938), ("step", 2, 3_000, 4_096), ("time", 22, 0, 4_096)):
        assert ask(server, recording, *request).header["refining"] == []
    steps = recording.steps
    reply = ask(server, recording, "step", 2, 3_000, 4_096)
    truth = reduced(steps["step"], steps["body_ns"] / 1e6, 2, 3_000, 4_096)
    np.testing.assert_allclose(np.stack(reply.series[("steps", "step")]), truth, rtol=2e-5)


def test_newer_rules_judge_a_long_run_by_its_sums(path, tmp_path, monkeypatch):
    """Its rows are not gone through when the tab is opened."""
    shutil.copytree(path, tmp_path / "copy")
    (manifest,) = (tmp_path / "copy").rglob("manifest.json")
    facts = json.loads(manifest.read_text())
    recorded = facts["diagnosis"]["verdict"]
    facts["diagnosis"] |= {"rules_version": -1, "verdict": "by older rules"}
    manifest.write_text(json.dumps(facts))
    app = PluginApp(tmp_path / "copy")
    (one,) = app.json("/runs")["recordings"]
    with monkeypatch.context() as context:
        context.setattr(Recording, "open_segment", lambda self, info: pytest.fail("a segment was opened"))
        report = app.json("/recording", id=one["id"])["report"]
    assert (report["rules_version"], report["verdict"]) == (RULES_VERSION, recorded)
