"""Energy: the integral of a known power curve, and what the training thread did meanwhile."""

import json
import re

import numpy as np
import pytest
from made_up_rows import step_table
from nvml import Scenario

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import Evidence, Run, run_report
from gpu_util_callback.diagnosis.evidence.energy import energy
from gpu_util_callback.recording.schema import STEP_PARTS

SECOND = 10**9
# 100 W while the input is waited for, 500 W in the step: three seconds of each, in turns.
TURN_S = 3
CURVE = [(t, 100_000 if t // TURN_S % 2 == 0 else 500_000) for t in range(0, 60, TURN_S)]
WAITING_J, STEP_J, TOTAL_J = 30 * 100, 30 * 500, 30 * 600


def curve(gpu, *, wrap=None, start=0):
    options = {"wrap": wrap} if wrap else {}
    gpu.counter(83, CURVE, start=start, **options)
    return gpu.curve("power_mw", CURVE)


def record(stepped, seconds, log_dir, *, steps=True):
    """A recording of 60 s: ten steps of 6 s, half of each a wait for input."""
    blocks = stepped.at(*seconds)
    start, half = stepped.library.start_us * 1000, np.full(10, TURN_S * SECOND)
    tables = {"steps": step_table(start, input_wait_ns=half, body_ns=half)} if steps else {}
    ended = start + 60 * SECOND
    return run_report(stepped.recording(log_dir, blocks, tables, ended_ns=ended, fit={"batch_size": 32}))


TICKS = np.arange(0, 60.01, 0.2)


# One tick in three is missing, and all of 2.4 seconds of even power.
FEWER = TICKS[(np.arange(len(TICKS)) % 3 != 1) & ((TICKS < 21.1) | (TICKS > 23.5))]
# What the driver does, when it is asked, and how far the split by time may be off (None: not judged).
COUNTER, POWER = "energy counter", "power samples"
DRIVERS = {
    # Bins of 0.1 s hold both at a change; between two samples of power it is seen as a slope.
    "a counter": (lambda gpu, _: curve(gpu), TICKS, COUNTER, 0.08),
    "power alone": (lambda gpu, _: curve(gpu).without("field:83:0"), TICKS, POWER, 0.2),
    "a counter of 32 bits": (lambda gpu, _: curve(gpu, wrap=2**32, start=2**32 - 7_000_000), TICKS, COUNTER, 0.08),
    "a counter, read less often": (lambda gpu, _: curve(gpu), FEWER, COUNTER, None),
    "power, read less often": (lambda gpu, _: curve(gpu).without("field:83:0"), FEWER, POWER, None),
    # Twelve seconds of failures, over changes of power: only a counter knows them.
    "no answers for a while": (
        lambda gpu, driver: (curve(gpu), driver.call("nvmlDeviceGetFieldValues", code=999, from_=20, until=32)),
        TICKS,
        COUNTER,
        None,
    ),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_energy_is_the_integral_of_the_power_curve(name, step, tmp_path):
    does, ticks, source, apart = DRIVERS[name]
    scenario = Scenario()
    does(scenario.gpu("h100"), scenario)
    run = record(step(scenario), ticks, tmp_path)
    found = run["energy"]
    assert found["total_j"] == pytest.approx(TOTAL_J, rel=0.01)
    if apart is not None:
        assert found["by_time_j"]["input_wait"] == pytest.approx(WAITING_J, rel=apart)
        assert found["by_time_j"]["step"] == pytest.approx(STEP_J, rel=apart)
    assert sum(found["by_time_j"].values()) == pytest.approx(found["total_j"], rel=1e-4)
    gpu = {"index": 0, "energy_j": found["total_j"], "source": source, "measured_s": pytest.approx(60, abs=0.3)}
    assert found["gpus"] == [gpu]
    assert found["estimated"] == (source == POWER)
    assert run["energy_j_per_sample"] == pytest.approx(TOTAL_J / (10 * 32), rel=0.01)


def test_a_counter_that_was_reset_costs_its_one_interval_no_more(step, tmp_path):
    """The driver was reloaded: the drop is no wrap, which would be 4 MJ in a second."""
    scenario = Scenario()
    gpu = scenario.gpu("h100").curve("power_mw", 500_000)
    points = [(0, 1e9), (29.9, 1e9 + 29.9 * 500_000), (29.9001, 0), (60, 30.1 * 500_000)]
    gpu.curve("field:83:0", points, "line")
    run = record(step(scenario), TICKS, tmp_path)
    assert run["energy"]["total_j"] == pytest.approx(30_000, rel=0.01)


def test_a_minute_without_samples_is_not_measured(step, tmp_path):
    scenario = Scenario()
    gpu = scenario.gpu("h100").curve("power_mw", 500_000)
    gpu.without("field:83:0")
    stepped = step(scenario)
    run = record(stepped, [0, 0.2, 0.4, 110, 110.2], tmp_path, steps=False)
    assert run["energy"]["measured_s"] < 1
    assert run["energy"]["total_j"] < 500


def test_the_report_names_energy_and_the_prices_given(step, tmp_path, capsys):
    scenario = Scenario()
    curve(scenario.gpu("h100"))
    record(step(scenario), TICKS, tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    said = re.search(
        r"Energy: ([\d.]+) Wh, including ([\d.]+) Wh while waiting for input; "
        r"([\d.]+) J a sample\.",
        text,
    )
    assert said is not None, text
    assert [float(one) for one in said.groups()] == pytest.approx([5, 0.833, 56.3], rel=0.08)
    assert "price" not in text and "CO" not in text
    args = ["report", str(tmp_path), "--price-per-kwh", "400", "--price-per-gpu-hour", "3"]
    assert main(args) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "At the prices given: 2.00 for electricity, 0.05 for 0.0167 GPU hours." in text
    assert main([*args, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["cost"] == {
        "energy": pytest.approx(2, rel=0.01),
        "gpu_hours": pytest.approx(1 / 60, rel=1e-3),
        "gpu_time": pytest.approx(0.05, rel=1e-3),
    }


def test_without_power_there_is_no_energy_and_no_price(step, tmp_path, capsys):
    scenario = Scenario()
    scenario.gpu("h100").without("field:83:0", "power_mw")
    run = record(step(scenario), TICKS, tmp_path)
    assert run["energy"] is None and run["energy_j_per_sample"] is None
    assert main(["report", str(tmp_path), "--price-per-kwh", "0.3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "energy was not measured" in err
    assert json.loads(out)["runs"][0]["cost"]["energy"] is None


def counted(blocks):
    """The energy of a run of 2 s whose first half waits, from blocks of (times in s, counter in W, power in W)."""
    evidence = Evidence(0)
    for times, counter, power in blocks:
        rows = {
            "time_ns": (np.array(times) * SECOND).astype(np.int64),
            "power_energy_mw": 1000 * np.array(counter, float),
            "power_mw": 1000 * np.array(power, float),
        }
        evidence.add({}, {"gpu0": rows})
    step = {**dict.fromkeys(STEP_PARTS, np.zeros(1, np.int64)), "start_ns": np.zeros(1, np.int64)}
    halves = {"input_wait_ns": np.array([SECOND]), "body_ns": np.array([SECOND]), "duration_ns": np.array([2 * SECOND])}
    evidence.add({"steps": {**step, **halves}})
    return energy(Run({"gpus": [{"index": 0, "used_by_framework": True}]}, evidence, 2 * SECOND))


def test_energy_between_two_reads_of_a_counter_goes_where_power_was_sampled():
    nan = np.nan
    ticks = np.arange(0, 2.01, 0.25)
    power = [100] * 5 + [500] * 4  # W at each tick, of the time before it
    counter = [nan] * 8 + [330]  # W over both seconds: the gauge reads 10 % low
    found = counted([(ticks, counter, power)])
    assert found["total_j"] == pytest.approx(660)
    assert found["by_time_j"]["input_wait"] == pytest.approx(110)
    assert found["by_time_j"]["step"] == pytest.approx(550)
    pieces = [(ticks[i : i + 3], counter[i : i + 3], power[i : i + 3]) for i in range(0, 9, 3)]
    assert counted(pieces) == found
    even = counted([(ticks, counter, [nan] * 9)])
    assert even["by_time_j"]["input_wait"] == pytest.approx(330)


def test_a_counter_that_was_not_read_for_long_measures_nothing_meanwhile():
    found = counted([([0, 0.1, 0.2, 100, 100.1], [np.nan, 100, 100, 100, 100], [100] * 5)])
    assert found["gpus"][0]["measured_s"] == pytest.approx(0.2)


def test_power_that_is_unknown_at_first_counts_from_its_first_sample():
    ticks, power = [0, 0.5, 1, 1.5, 2], [np.nan, np.nan, 100, 100, 100]
    whole = counted([(ticks, [np.nan] * 5, power)])
    assert whole["total_j"] == pytest.approx(100)
    assert counted([(ticks[:2], [np.nan] * 2, power[:2]), (ticks[2:], [np.nan] * 3, power[2:])]) == whole
