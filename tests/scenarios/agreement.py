"""No number that is printed contradicts the sentence it stands in: report, JSON and tab alike."""

import re

import pytest
from made_up_run import findings_of

from gpu_util_callback.diagnosis.verdict import gain_text
from gpu_util_callback.words import duration, evidence_words, percent, unit_of

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


def check_agreement(run: dict, reply: dict, text: str) -> None:
    """Check the run of the JSON report, its reply to the tab, and its text."""
    _a_stage_is_blamed_only_if_it_is_too_slow(run, text)
    _here_is_slower_than_elsewhere(run)
    _savings_add_up_to_the_headline(run, reply, text)
    _a_finding_costs_no_more_than_its_span_and_the_run(run)
    _values_are_in_their_units(run, reply, text)
    _utilization_is_one_statistic(run, text)


def _seconds(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * SCALE[unit]


def _check_stages(text: str) -> None:
    """A stage that is blamed for its time is slower than the model needs it to be."""
    for took, unit, needed, of in re.findall(
        rf"takes {NUMBER} a batch[^.;]*, but the model could take one every {NUMBER}", text
    ):
        assert _seconds(took, unit) >= 0.9 * _seconds(needed, of), text
    for together, unit, needed, of in re.findall(
        rf"that is {NUMBER}, but the model could take one every {NUMBER}", text
    ):
        assert _seconds(together, unit) >= 0.9 * _seconds(needed, of), text
    for comes, unit, needed, of in re.findall(
        rf"a batch arrives every {NUMBER}, but the model could take one every {NUMBER}", text
    ):
        assert _seconds(comes, unit) >= _seconds(needed, of), text


def _a_stage_is_blamed_only_if_it_is_too_slow(run, text):
    _check_stages(text)
    for finding in findings_of(run):
        _check_stages(finding["advice"]["text"])


def _here_is_slower_than_elsewhere(run):
    for finding in findings_of(run):
        seen = finding["evidence"]
        if seen.get("step_here_without_its_wait_ms") is not None:
            assert seen["step_here_without_its_wait_ms"] <= seen["step_ms"]
        if finding["cause"] == "imbalance" and seen.get("others_ms_per_step") is not None:
            assert seen["ms_per_step"] > seen["others_ms_per_step"]


def _savings_add_up_to_the_headline(run, reply, text):
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


def _a_finding_costs_no_more_than_its_span_and_the_run(run):
    for finding in findings_of(run):
        if finding["lost_s"] is not None:
            assert finding["lost_s"] <= run["wall_s"] * 1.000001
        if finding["lost_s"] is not None and "start_ns" in finding:
            assert finding["lost_s"] <= (finding["end_ns"] - finding["start_ns"]) / 1e9 * 1.000001


def _values_are_in_their_units(run, reply, text):
    """What the tab shows is what the JSON holds: the same number, in the unit of its name."""
    sent = findings_of(reply["report"])
    for finding, shown in zip(findings_of(run), sent, strict=True):
        rows = {row["name"]: row for row in shown["rows"]}
        for name, value in finding["evidence"].items():
            if value is None:
                continue
            row = rows[name]
            assert name in evidence_words(), f"no words for {name}"
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                _check_value(row["value"], value, unit_of(name))
            if row["rule"]:
                side, limit = row["rule"][0], finding["threshold"][name]
                assert (value >= limit) == (side == "≥")
                _check_value(row["rule"][2:], limit, unit_of(name))
            if row["rule"] and name not in ("faster_up_to",):
                assert f"{row['value']} (threshold {row['rule'][2:]})" in text


def _check_value(text: str, value: float, unit: str) -> None:
    if unit in SCALE and (" m " in text or " h " in text):
        return  # minutes and hours
    number, shown = re.fullmatch(NUMBER, text).groups()
    known = float(number.replace(",", ""))
    if unit in SCALE:
        assert known * SCALE[shown] == pytest.approx(value * SCALE[unit], rel=0.03, abs=1e-7)
    else:
        assert shown == ("%" if unit == "share" else unit)
        assert known == pytest.approx(100 * value if unit == "share" else value, rel=0.06, abs=0.6)


def _utilization_is_one_statistic(run, text):
    means = [gpu["utilization_pct"]["mean"] for gpu in run["gpus"]]
    shown = re.findall(r"GPU active ([\d.]+) % \(avg\)", text)
    known = [percent(mean).split()[0] for mean in means if mean is not None]
    assert sorted(shown) == sorted(known)
