"""The lane of a GPU's time: what it shows adds up to the accounts, at any zoom."""

from pathlib import Path

import numpy as np
import pytest
from gallery import eight_findings, many_gpus, two_findings
from make_recording import make_recording
from tile_reply import settled_tile as ask

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis.run_reports import run_report
from tensorboard_plugin import gpu_time
from tensorboard_plugin.replies import recording_reply
from tensorboard_plugin.tiles.server import TileServer

ROOT = Path(__file__).resolve().parents[2]
RECORDED = [ROOT / "demo" / "recorded", ROOT / "docs" / "try" / "recordings"]
POINT = 1.0  # of the run, in percent


@pytest.fixture(scope="module")
def replies(tmp_path_factory):
    """Recordings, real ones and made-up ones, with the reply about each."""
    root = tmp_path_factory.mktemp("gpu-time")
    two_findings(root / "two")
    eight_findings(root / "eight")
    many_gpus(root / "many")
    make_recording(root / "laptop" / "no-gpu", "no_gpu", steps=300, gpus=0)
    recordings = [recording for folder in [*RECORDED, root] for recording in read_recordings(folder)]
    return [(one, recording_reply(one, one.revision, run_report(one))) for one in recordings]


def named(replies, name):
    return next((recording, reply) for recording, reply in replies if name in recording.id)


def seconds(budget) -> dict[str, float]:
    return {part["name"]: part["seconds"] for part in budget["parts"]}


def test_what_is_busy_is_the_share_that_verdict_and_report_say(replies):
    """One share wherever one looks: within a point of the run."""
    seen = 0
    for recording, reply in replies:
        used = [gpu for gpu in reply["report"]["gpus"] if gpu["used_by_framework"]]
        active = {f"time:gpu{gpu['index']}": gpu["utilization_pct"]["mean"] for gpu in used}
        if len(active) >= gpu_time.MANY_GPUS:
            active = {"time:mean": sum(active.values()) / len(active)}
        # The diagnosis that is stored there counts in tenths of a second, which shows in a run of five.
        room = POINT if recording.account["wall_s"] > 10 else 2 * POINT
        for budget in reply["budgets"]:
            if budget["lane"] in active:
                busy = 100 * seconds(budget).get("busy", 0) / budget["known_s"]
                assert busy == pytest.approx(active[budget["lane"]], abs=room), recording.id
                seen += 1
    assert seen >= 10


def test_the_parts_add_up_to_the_training_and_none_exceeds_what_the_thread_measured(replies):
    for recording, reply in replies:
        times, wall_s = recording.account["time_s"], recording.account["wall_s"]
        for budget in reply["budgets"]:
            parts = seconds(budget)
            assert sum(parts.values()) == pytest.approx(budget["known_s"], rel=1e-6, abs=1e-4)
            assert budget["known_s"] <= wall_s * (1 + POINT / 100)
            room = POINT / 100 * wall_s
            for name, category in (("input", "input_wait"), ("compile", "compile"), ("validation", "validation")):
                assert parts.get(name, 0) <= times[category] + room, (recording.id, name)
            saved = parts.get("callbacks", 0) + parts.get("checkpoint", 0)
            assert saved <= times["callbacks"] + room, recording.id


def test_without_a_gpu_the_lane_is_the_threads_account_exactly(replies):
    seen = 0
    for recording, reply in replies:
        for budget in reply["budgets"]:
            if budget["lane"] != "time:thread":
                continue
            [lane] = (one for one in reply["lanes"] if one["id"] == budget["lane"])
            parts, times = seconds(budget), recording.account["time_s"]
            saved = parts.get("callbacks", 0) + parts.get("checkpoint", 0)
            close = {"abs": 0.01 * recording.account["wall_s"]}
            assert lane["title"] == "Training thread" and parts["busy"] == pytest.approx(times["step"], **close)
            assert parts.get("input", 0) == pytest.approx(times["input_wait"], **close)
            assert parts.get("compile", 0) == pytest.approx(times["compile"], **close)
            assert parts.get("validation", 0) == pytest.approx(times["validation"], **close)
            assert saved == pytest.approx(times["callbacks"], **close)
            seen += 1
    assert seen >= 3


@pytest.mark.parametrize(("axis", "level"), [("time", 29), ("time", 25), ("step", 0), ("step", 4)])
def test_buckets_at_any_zoom_add_up_to_the_bar(replies, axis, level):
    """Bar and lane agree by construction: each bucket's shares of its time, summed."""
    for name in ("resnet50", "all-at-once"):
        recording, reply = named(replies, name)
        (budget,) = reply["budgets"]
        last = recording.end_ns - recording.top.origin_ns
        count = -(-(last if axis == "time" else recording.top.step_range[1] + 1) >> level)
        answer = ask(TileServer(), recording, axis, level, 0, count, [budget["lane"]])
        own = {name: values[2] for (_, name), values in answer.series.items()}
        assert np.nansum(list(own.values()), axis=0).max() <= 100.001
        lengths = np.diff(np.minimum(np.append(answer.start_ns, last), last)) / 1e9
        covered = lengths[~np.isnan(own["busy"])].sum()
        # Steps have no place for what precedes the first of them.
        assert covered == pytest.approx(budget["known_s"], rel=0.02)
        for part, value in seconds(budget).items():
            total = float(np.nansum(own[part] / 100 * lengths))
            assert total == pytest.approx(value, abs=POINT / 100 * covered), part


def test_a_hole_never_takes_more_than_the_gpu_idled():
    """Clocks that say more than there was: all causes are scaled alike, and nothing is unexplained."""
    edges = np.arange(0, 11) * 1e9
    wait = gpu_time.spread(np.array([0.0]), np.array([10e9]), np.array([6e9]))
    saving = gpu_time.spread(np.array([0.0]), np.array([10e9]), np.array([3e9]))
    parts = dict.fromkeys(gpu_time.EXACT, gpu_time.NOTHING) | {"input": wait, "checkpoint": saving}
    busy = gpu_time.spread(np.array([0.0]), np.array([10e9]), np.array([7e9]))
    known = gpu_time.spread(np.array([0.0]), np.array([10e9]), np.array([10e9]))
    thread = gpu_time.Thread(parts, gpu_time.NOTHING, gpu_time.NOTHING)
    split = gpu_time.split(thread, [(busy, known)], 0.0, edges, 10e9)
    sums = dict(zip(gpu_time.PARTS, split.ns.sum(axis=1) / 1e9, strict=True))
    assert (
        sums["busy"] == pytest.approx(7)
        and sums["input"] == pytest.approx(2)
        and sums["checkpoint"] == pytest.approx(1)
    )
    assert sums["rest"] == pytest.approx(0, abs=1e-9)


def test_what_was_not_sampled_is_in_no_part_and_joined_by_no_slope():
    times = np.concatenate([np.arange(0.2, 10, 0.2), np.arange(30.2, 40, 0.2)]) * 1e9
    ones = np.ones((1, len(times)))
    samples = gpu_time.Totals(times.astype(np.int64), 50 * ones, ones)
    busy, known = gpu_time.busy_curves(samples)
    assert known.total[-1] / 1e9 == pytest.approx(19.6, abs=0.3)
    thread = gpu_time.Thread(dict.fromkeys(gpu_time.EXACT, gpu_time.NOTHING), gpu_time.NOTHING, gpu_time.NOTHING)
    split = gpu_time.split(thread, [(busy, known)], 0.0, np.linspace(0, 40e9, 401), 40e9)
    shares = split.shares(np.arange(0, 41) * 1e9)
    assert np.isnan(shares[0][12:29]).all() and shares[0][5] == pytest.approx(50)
    assert split.known_ns.sum() / 1e9 == pytest.approx(20, abs=0.6)


def test_a_trace_is_split_exactly():
    """Steps of a profiler's file: kernels, copies and each idle category, from its rows."""
    rows = {"gpu": np.zeros(2, np.int64), "start_ns": np.array([0, 100]), "duration_ns": np.array([100, 100])}
    for category in ("kernel", "collective", "copy_h2d", "copy_d2h", "copy_d2d", "idle_input", "idle_launch"):
        rows[f"{category}_ns"] = np.zeros(2, np.int64)
    for category in ("idle_sync", "idle_host", "other"):
        rows[f"{category}_ns"] = np.zeros(2, np.int64)
    rows["kernel_ns"][:], rows["idle_input_ns"][:] = (10, 90), (90, 0)
    rows["copy_h2d_ns"][1] = 10
    split = gpu_time.traced_split(rows, 0, 0, 250.0)
    shares = split.shares(np.array([0.0, 100, 200, 250]))
    of = dict(zip(gpu_time.PARTS, shares, strict=True))
    assert of["busy"][:2].tolist() == [10, 90] and of["input"][:2].tolist() == [90, 0] and of["copies"][1] == 10
    assert np.isnan(of["busy"][2]) and split.known_ns.sum() == 200


def test_findings_say_which_part_of_the_time_they_take(replies):
    report = named(replies, "all-at-once")[1]["report"]
    parts = {one["id"].partition("@")[0]: one["part"] for one in [*report["spans"], *report["findings"]]}
    assert parts["host_stall:ModelCheckpoint"] == "checkpoint"
    assert parts["host_stall:WandbMetricsLogger"] == "callbacks"
    assert parts["input_bound"] == "input" and parts["recompilation"] == "compile"
    assert parts["throttled:thermal"] == "" and parts["no_tensor_cores:gpu0"] == ""


def test_buckets_about_as_long_as_a_step_do_not_alias():
    """Steps of 20 ms, the first half of each a wait, in buckets of 16 ms: the mean of several steps, at most."""
    cells = 2000
    ns = np.zeros((len(gpu_time.PARTS), cells))
    parts = list(gpu_time.PARTS)
    ns[parts.index("input"), ::2] = ns[parts.index("busy"), 1::2] = 10e6
    exact = gpu_time.Split(np.arange(cells + 1) * 10e6, ns, np.full(cells, 10e6))
    buckets = np.arange(0, cells * 10e6, 16e6)
    waits = [exact.shares(buckets, least_ns)[parts.index("input")] for least_ns in (0.0, 120e6)]
    assert np.ptp(waits[0]) > 20 and np.ptp(waits[1][10:-10]) < 8
    assert waits[1].mean() == pytest.approx(50, abs=1)
