"""What real cards said, replayed: when they computed, what they drew, beside the truth."""

import numpy as np
import pytest
from nvml import Scenario
from replayed_gpus import LOADS, SECOND, SQUARES, recorded, trained

from gpu_util_callback.diagnosis import Evidence, Run, run_report
from gpu_util_callback.diagnosis.evidence.gauges import HOLD_NS
from tensorboard_plugin.lanes import lanes_of


@pytest.fixture
def replay(step, trace_data, tmp_path):
    """replay(name or card, counter=False, **options): the card, its training, ns of second 0."""

    def start(card, counter=False, **options):
        card = recorded(trace_data, card) if isinstance(card, str) else card
        stepped = step(card.scenario(counter=counter))
        return card, *trained(card, stepped, tmp_path / f"{len(list(tmp_path.iterdir()))}", **options)

    return start


def run_of(recording):
    evidence = Evidence()
    evidence.add({"steps": recording.steps, "phases": recording.phases}, recording.samples)
    return Run(recording.facts, evidence, ended=True)


def active_pct(run, begin, stretches):
    """Mean utilization over stretches (start, end), s."""
    at = begin + np.rint(np.array(stretches) * SECOND).astype(np.int64)
    idle, _ = run.idle_each(at[:, 0], at[:, 1])
    return 100 * float(np.average(1 - idle, weights=at[:, 1] - at[:, 0]))


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("phase_s", [0, 0.035, 0.07])
def test_activity_is_attributed_to_the_steps_that_caused_it(name, phase_s, replay):
    card, recording, begin = replay(name, phase_s=phase_s)
    run, (start, end) = run_of(recording), card.metered_s
    ((on, off),) = card.loads
    assert active_pct(run, begin, [(on, off)]) >= 97
    assert active_pct(run, begin, [(start + 0.2, on), (off, end)]) <= 3
    # Onset and end: where the readings, each the mean of the time before it, reach a half.
    block = recording.samples["gpu0/utilization"]
    at, busy = (block["time_ns"] - begin) / SECOND, block["utilization_pct"]
    high = np.flatnonzero(busy >= 50)
    onset = at[high[0]] - busy[high[0]] / 100 * (at[high[0]] - at[high[0] - 1])
    last = high[-1] + 1 if busy[high[-1]] == 100 else high[-1]
    ending = at[last - 1] + busy[last] / 100 * (at[last] - at[last - 1])
    assert abs(onset - on) < 0.2
    assert abs(ending - off) < 0.2


@pytest.mark.parametrize("name", LOADS)
def test_the_refresh_is_found_in_the_run(name, replay, trace_data):
    _, recording, _ = replay(recorded(trace_data, name).with_stalls(0.5, 2))
    (gpu,) = recording.facts["gpus"]
    assert 150 <= gpu["utilization_refresh_ms"] <= 310
    assert run_of(recording).lag_ns() == 2e6 * gpu["utilization_refresh_ms"] < HOLD_NS


def test_where_no_refresh_is_seen_two_seconds_are_assumed(step):
    scenario = Scenario(samples_period_ms=0)
    scenario.gpu("a100").curve("utilization", [(0, 40), (3, 90)])
    stepped = step(scenario)
    stepped.at(*np.arange(0, 6, 0.1))
    assert "utilization_refresh_ms" not in stepped.reader.facts
    assert Run({"gpus": [{"index": 0, "used_by_framework": True}]}, Evidence()).lag_ns() == HOLD_NS


def test_the_driver_s_own_samples_show_their_refresh(step):
    scenario = Scenario("a100", samples_period_ms=166.667)
    stepped = step(scenario)
    stepped.at(*np.arange(0, 3, 0.1))
    assert stepped.reader.facts["utilization_refresh_ms"] == 167


@pytest.mark.parametrize("name", LOADS)
def test_stalls_of_half_a_second_show(name, replay, trace_data):
    card = recorded(trace_data, name).with_stalls(0.5, 6)
    card, recording, begin = replay(card)
    stalls = [(end, start) for (_, end), (start, _) in zip(card.loads, card.loads[1:])]  # noqa: B905
    assert len(stalls) == 6
    run = run_of(recording)
    assert active_pct(run, begin, stalls) <= 30  # half of it by windows across an edge
    report = run_report(recording)
    (found,) = [one for one in [*report["findings"], *report["spans"]] if one["cause"] == "host_stall"]
    assert found["lost_s"] == pytest.approx(3, rel=0.25)


@pytest.mark.parametrize("name", SQUARES)
def test_a_square_wave_faster_than_the_readings_is_half_and_says_so(name, replay):
    card, recording, begin = replay(name)
    report = run_report(recording)
    (gpu,) = report["gpus"]
    inside = active_pct(run_of(recording), begin, [(card.loads[1][0], card.loads[-1][1])])
    assert inside == pytest.approx(50, abs=2)
    assert "alternates" in gpu["utilization_note"]


@pytest.mark.parametrize("name", LOADS[:2])
def test_power_is_the_instantaneous_reading_where_the_driver_has_it(name, replay):
    card, recording, begin = replay(name)
    block = recording.samples["gpu0"]
    at, power = (block["time_ns"] - begin) / SECOND, block["power_mw"] / 1e3
    ((on, off),) = card.loads
    half = (power[at < on].mean() + power[(at > on + 1) & (at < off)].mean()) / 2
    assert at[power > half][0] - on < 0.3
    assert at[power > half][-1] - off < 0.3


def test_power_that_is_a_mean_is_called_one(replay):
    notes = {}
    for name in LOADS:
        _, recording, _ = replay(name)
        (gpu,) = recording.facts["gpus"]
        (lane,) = [lane for lane in lanes_of(recording) if lane["id"] == "gpu0:power_mw"]
        notes[name] = gpu["power_instant"], lane["note"]
    mean = False, "the driver's mean over up to a second"
    assert list(notes.values()) == [(True, None), (True, None), mean]


def test_a_passing_failure_does_not_change_what_power_means(step):
    scenario = Scenario().call("nvmlDeviceGetFieldValues", code=999, from_=0.1, until=0.2)
    scenario.gpu("a100").curve("field:186:0", 250_000, type=1).curve("power_mw", 200_000)
    power = step(scenario).at(0, 0.1)["gpu0"]["power_mw"]
    assert power[0] == 250_000
    assert np.isnan(power[1])


@pytest.mark.parametrize("name", LOADS)
def test_energy_by_a_counter_and_its_split_agree_with_the_meter(name, replay):
    card, recording, _ = replay(name, counter=True)
    energy = run_report(recording)["energy"]
    (start, end), ((on, off),) = card.metered_s, card.loads
    assert energy["gpus"][0]["source"] == "energy counter"
    assert energy["total_j"] == pytest.approx(card.meter_j(start, end), rel=0.05)
    waiting = card.meter_j(start, on) + card.meter_j(off, end)
    assert energy["by_time_j"]["step"] == pytest.approx(card.meter_j(on, off), rel=0.08)
    assert energy["by_time_j"]["input_wait"] == pytest.approx(waiting, rel=0.08)


@pytest.mark.parametrize("name", LOADS)
def test_energy_of_power_readings_differs_by_their_own_offset_alone(name, replay):
    """Sensors read 1 to 26 % below the meter at rest; no timing mends that."""
    card, recording, _ = replay(name)
    energy = run_report(recording)["energy"]
    (start, end), ((on, off),) = card.metered_s, card.loads

    def offset(from_s, until_s):
        """The power readings over the meter's, at rest."""
        at = (card.t >= from_s) & (card.t < until_s)
        metered = card.meter_j(from_s, until_s) / (until_s - from_s)
        return card.readings["power_mw"][at].mean() / 1e3 / metered

    waiting = offset(off + 3, end) * (card.meter_j(start, on) + card.meter_j(off, end))
    busy = offset(on + 2, off) * card.meter_j(on, off)
    split = energy["by_time_j"]
    assert split["step"] == pytest.approx(busy, rel=0.04)
    assert split["input_wait"] == pytest.approx(waiting, rel=0.15)
    assert energy["total_j"] == pytest.approx(busy + waiting, rel=0.04)
