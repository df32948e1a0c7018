"""No number that is printed contradicts the sentence it stands in: report, JSON and tab alike."""

import re
from functools import cache

import numpy as np
import pytest
from generated_runs import GPU, Generated
from scoring import by_cause
from test_made_up_jobs import CASES

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.diagnosis.verdict import gain_text
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.screen import Detail
from gpu_util_callback.report.terminal import render
from gpu_util_callback.words import EVIDENCE, duration, percent, unit_of
from tensorboard_plugin.replies import recording_reply

SCALE = {
    "s": 1.0,
    "ms": 1e-3,
    "µs": 1e-6,
    "B": 1,
    "bytes": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
NUMBER = r"([\d.,]+) ?([a-zA-Zµ%×°/]*)"


def piped(*stages, ahead: bool = True, wait_ms: float | np.ndarray = 6.0, step_ms=20.0):
    """A run that waits for tf.data stages `(name, op, ms, threads, flags)`."""

    def build():
        run = Generated(seed=3, gpus=[GPU])
        run.steps(400, step_ms=step_ms, wait_ms=wait_ms)
        last = (("prefetch", "Prefetch", 0.0, 1.0, ""),) if ahead else ()
        run.reading(*stages, *last, batches=400)
        return run, {}

    return build


JITTER = np.tile([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 60.0], 40)
PIPELINES = {
    "fast-enough": piped(("map(decode)", "Map", 3.3, 1.0, "sequential")),
    "fast-on-threads": piped(("map(decode)", "ParallelMap", 60.0, 8.0, "")),
    "fast-and-jittery": piped(("map(decode)", "ParallelMap", 6.0, 2.0, ""), wait_ms=JITTER),
    "together-too-slow": piped(("TFRecordDataset", "TFRecord", 12.0, 1.0, ""), ("map(decode)", "Map", 14.0, 1.0, "")),
    "one-too-slow": piped(("map(decode)", "Map", 26.0, 1.0, "sequential")),
    "nothing-ahead": piped(("map(decode)", "Map", 5.5, 1.0, "sequential"), ahead=False),
    "batching": piped(("batch", "BatchV2", 3.0, 1.0, ""), ahead=False),
    "summed": piped(("map(decode)", "ParallelMap", 240.0, 8.0, "")),
}
BUILT = {
    **{case.name: case.build for case in CASES[::2]},
    **{f"pipeline: {name}": build for name, build in PIPELINES.items()},
}


@cache
def report_of(name: str, folder) -> tuple[dict, dict, str]:
    """(the run of the JSON report, its reply to the tab, its text)."""
    built, _ = BUILT[name]()
    built.write(folder)
    recordings = list(read_recordings(folder))
    report = logdir_report(recordings)
    [run] = report["runs"]
    reply = recording_reply(recordings[0], "1", run)
    return run, reply, " ".join(render(report, 100, detail=Detail(True, True)).split())


@pytest.fixture(params=BUILT)
def reported(request, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / re.sub(r"\W", "-", request.param)
    return report_of(request.param, folder)


def seconds(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * SCALE[unit]


def findings_of(run: dict) -> list[dict]:
    return [*run["spans"], *run["findings"]]


def check_stages(text: str) -> None:
    """A stage that is blamed for its time is slower than the model needs it to be."""
    for took, unit, needed, of in re.findall(
        rf"takes {NUMBER} a batch[^.;]*, but the model could take one every {NUMBER}", text
    ):
        assert seconds(took, unit) >= 0.9 * seconds(needed, of), text
    for together, unit, needed, of in re.findall(
        rf"that is {NUMBER}, but the model could take one every {NUMBER}", text
    ):
        assert seconds(together, unit) >= 0.9 * seconds(needed, of), text
    for comes, unit, needed, of in re.findall(
        rf"a batch arrives every {NUMBER}, but the model could take one every {NUMBER}", text
    ):
        assert seconds(comes, unit) >= seconds(needed, of), text


def test_a_stage_is_blamed_only_if_it_is_too_slow(reported):
    run, _, text = reported
    check_stages(text)
    for finding in findings_of(run):
        check_stages(finding["advice"]["text"])


def test_here_is_slower_than_elsewhere(reported):
    run, _, _ = reported
    for finding in findings_of(run):
        seen = finding["evidence"]
        if seen.get("unstarved_steps_elsewhere_ms") is not None:
            assert seen["unstarved_steps_elsewhere_ms"] < seen["step_ms"]
        if seen.get("step_here_without_its_wait_ms") is not None:
            assert seen["step_here_without_its_wait_ms"] <= seen["step_ms"]
        if finding["cause"] == "imbalance" and seen.get("others_ms_per_step") is not None:
            assert seen["ms_per_step"] > seen["others_ms_per_step"]


def test_savings_add_up_to_the_headline(reported):
    run, reply, text = reported
    listed = findings_of(run)
    for finding in listed:
        assert (finding["saves_s"] or 0) <= (finding["lost_s"] or 0) * 1.000001
    lead = run["headline"]
    assert reply["report"]["headline"] == lead
    if lead is None:
        assert "faster" not in run["verdict"]
        return
    saves = sum(one["saves_s"] or 0 for one in listed)
    assert lead["all_saves_s"] == pytest.approx(saves, abs=1e-5) and saves <= run["wall_s"] * 1.01
    for gain in re.findall(r"could make this run (.*?) faster", run["verdict"]):
        assert gain == gain_text(run["wall_s"], lead["saves_range_s"])
    of = [one for one in listed if one["id"] in lead["ids"]]
    if f"{duration(lead['lost_s'])} of" in run["verdict"]:
        assert lead["lost_s"] == pytest.approx(sum(one["lost_s"] for one in of), abs=1e-5)
    assert run["verdict"] in text


def test_a_finding_costs_no_more_than_its_span_and_the_run(reported):
    run, _, _ = reported
    for finding in findings_of(run):
        if finding["lost_s"] is not None:
            assert finding["lost_s"] <= run["wall_s"] * 1.000001
        if finding["lost_s"] is not None and "start_ns" in finding:
            assert finding["lost_s"] <= (finding["end_ns"] - finding["start_ns"]) / 1e9 * 1.000001


def test_values_are_in_their_units(reported):
    """What the tab shows is what the JSON holds: the same number, in the unit of its name."""
    run, reply, text = reported
    sent = findings_of(reply["report"])
    for finding, shown in zip(findings_of(run), sent, strict=True):
        rows = {row["name"]: row for row in shown["rows"]}
        for name, value in finding["evidence"].items():
            if value is None:
                continue
            row = rows[name]
            assert name in EVIDENCE, f"no words for {name}"
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                check_value(row["value"], value, unit_of(name))
            if row["rule"]:
                side, limit = row["rule"][0], finding["threshold"][name]
                assert (value >= limit) == (side == "≥")
                check_value(row["rule"][2:], limit, unit_of(name))
            if row["rule"] and name not in ("faster_up_to",):
                assert f"{row['value']} ({row['rule']})" in text


def check_value(text: str, value: float, unit: str) -> None:
    if unit in SCALE and (" m " in text or " h " in text):
        return  # minutes and hours
    number, shown = re.fullmatch(NUMBER, text).groups()
    known = float(number.replace(",", ""))
    if unit in SCALE:
        assert known * SCALE[shown] == pytest.approx(value * SCALE[unit], rel=0.03, abs=1e-7)
    else:
        assert shown == ("%" if unit == "share" else unit)
        assert known == pytest.approx(100 * value if unit == "share" else value, rel=0.06, abs=0.6)


def test_utilization_is_one_statistic(reported):
    run, _, text = reported
    means = [gpu["utilization_pct"]["mean"] for gpu in run["gpus"]]
    shown = re.findall(r"GPU active ([\d.]+) % \(avg\)", text)
    known = [percent(mean).split()[0] for mean in means if mean is not None]
    assert sorted(shown) == sorted(known)


def test_a_fast_pipeline_is_not_blamed(tmp_path):
    for name in ("fast-enough", "fast-on-threads"):
        run, _ = PIPELINES[name]()
        result = run.diagnose()
        [finding] = by_cause(result)["input_bound"]
        assert "slowest_stage" not in finding["evidence"]
        assert "is fast enough on average" in finding["advice"]["text"]
        assert not finding["saves_s"], "nothing is promised of a cause that is not known"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("together-too-slow", "With the other stages on its thread that is 26 ms"),
        ("one-too-slow", "takes 26 ms a batch"),
        ("nothing-ahead", "makes each batch while the loop waits"),
    ],
)
def test_a_slow_one_is(name, said):
    run, _ = PIPELINES[name]()
    [finding] = by_cause(run.diagnose())["input_bound"]
    assert said in finding["advice"]["text"]
