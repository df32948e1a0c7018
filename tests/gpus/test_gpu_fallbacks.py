"""Each source that another one can replace, with its first choice missing altogether."""

import shutil
import sys

import numpy as np
import pytest
from made_up_rows import step_table
from nvml import Scenario, build_standin, environment
from programs import ran
from test_gpu_readings import BATCH, WAYS

from gpu_util_callback.diagnosis import diagnose, run_report
from gpu_util_callback.gpus import FrameworkGpu, _gate
from gpu_util_callback.gpus._devices import list_gpus
from gpu_util_callback.gpus._mapping import Visible, match
from gpu_util_callback.recorder.outputs import ScalarPoints


def lacking(way, *symbols, profile="h100"):
    """A scenario of one GPU whose driver does without some calls."""
    scenario = Scenario()
    for symbol in symbols:
        WAYS[way](scenario, symbol)
    return scenario, scenario.gpu(profile)


def test_event_reasons_serve_while_the_batch_fails_now_and_then(step):
    scenario = Scenario().call(BATCH, code=999, from_=2, until=4)
    scenario.gpu("h100").curve("event_reasons", 0x20)
    seen = step(scenario).at(0, 1, 2, 3, 10, 11)["gpu0"]["throttle_thermal_pct"]
    np.testing.assert_array_equal(seen, [np.nan, 0, 100, 100, np.nan, 0])


@pytest.mark.parametrize("way", WAYS)
def test_the_driver_s_buffer_serves_where_utilization_cannot_be_polled(step, way, tmp_path):
    stepped = step(lacking(way, "nvmlDeviceGetUtilizationRates")[0])
    rows = stepped.at(*np.arange(0, 5, 0.5))
    assert np.isnan(rows["gpu0"]["utilization_pct"]).all()
    assert (rows["gpu0/utilization"]["utilization_pct"] == 95).all()
    assert "gpu0 utilization" not in stepped.reasons()
    # ... and then it is what the scalars show.
    points = ScalarPoints(freq=1)
    for group, block in rows.items():
        columns = [name for name in block if name != "t"]
        values = np.stack([block[name] for name in columns], 1)
        points.add_samples(group, columns, (block["t"] * 1e9).astype(np.int64), values)
    one = np.array([0])
    ((_, values, _),) = points.add_steps(
        {"step": one, "start_ns": one, "duration_ns": one + 10**9, "input_wait_ns": one}
    )
    assert values["gpu_util/gpu0/utilization_pct"] == pytest.approx(95)


def test_power_by_the_energy_counter_is_the_report_s(make_throttled):
    run = make_throttled("nvmlDeviceGetPowerUsage", way="absent")
    assert run["report"]["gpus"][0]["power_mw"]["mean"] == pytest.approx(500_000, rel=0.02)


@pytest.mark.parametrize("way", ["absent", "not supported"])
def test_throttling_is_judged_without_the_batch_of_counters(make_throttled, way):
    found = make_throttled(BATCH, way=way)["found"]
    claims = [claim for claim in [*found["findings"], *found["spans"]] if claim["cause"] == "throttled"]
    assert [claim["evidence"]["reason"] for claim in claims] == ["thermal"]
    assert claims[0]["evidence"]["throttled_pct"] == pytest.approx(100, abs=5)


@pytest.fixture
def make_throttled(step, tmp_path):
    """make_throttled(*symbols, way=): a recording of a GPU that is hot for 20 of 40 seconds, whose
    driver does without some calls, its diagnosis and its report."""

    def make(*symbols, way):
        scenario, gpu = lacking(way, *symbols)
        scenario.options["samples_period_ms"] = 0
        gpu.curve("event_reasons", [(0, 0), (20, 0x20)]).curve("clock:1", [(0, 1980), (20, 990)])
        gpu.counter(269, [(0, 0), (20, 1e9)]).counter(83, 500_000)
        stepped = step(scenario)
        blocks = stepped.at(*np.arange(0, 40, 0.2))
        rows = step_table(stepped.library.start_us * 1000, body_ns=np.full(400, 10**8))
        recording = stepped.recording(tmp_path, blocks, {"steps": rows})
        return {"found": diagnose(recording), "report": run_report(recording)}

    return make


# ---- which GPU is whose ---------------------------------------------------------------------


UUID = "GPU-0000000{}-0000-0000-0000-000000000000"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("symbol", ["nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"])
def test_a_driver_that_tells_one_identity_only(step, way, symbol):
    stepped = step(lacking(way, symbol)[0])
    (gpu,) = list_gpus(stepped.gate)
    assert bool(gpu.uuid) == (symbol != "nvmlDeviceGetUUID")
    assert bool(gpu.pci_bus_id) == (symbol != "nvmlDeviceGetPciInfo_v3")
    wanted = FrameworkGpu(0, uuid=gpu.uuid or UUID.format(9), pci_bus_id="0000:17:00.0")
    (found,) = match([wanted], Visible([gpu]), [gpu], [])
    assert found.gpu is gpu
    assert stepped.at(0)["gpu0"]["utilization_pct"].tolist() == [95]


def test_a_lost_gpu_without_a_uuid_is_found_again(step):
    scenario = Scenario().without("nvmlDeviceGetUUID")
    scenario.call("*", code=15, gpu=0, from_=1, until=2).gpu("h100")
    rows = step(scenario).at(0.5, 1.5, 3, 10, 20)
    assert rows["gpu0/lost"]["lost"].tolist() == [1, 0]
    assert rows["gpu0"]["t"].max() > 2


# ---- the driver's library -------------------------------------------------------------------


def test_a_library_that_the_loader_does_not_find_is_loaded_by_its_path(tmp_path):
    home = tmp_path / "driver"
    home.mkdir()
    shutil.copy(build_standin(tmp_path), home)
    program = f"""
from gpu_util_callback.gpus import _gate
_gate._FOLDERS = ("/nowhere", {str(home)!r})
binding, problem = _gate.open_nvml()
print(problem or binding.nvmlDeviceGetCount())
"""
    scenario = Scenario("h100")
    env = environment(scenario, tmp_path)
    env.pop("LD_LIBRARY_PATH")
    assert ran(sys.executable, "-c", program, env=env).stdout.strip() == "1"


def test_folders_of_drivers_hold_no_stub():
    assert not [folder for folder in _gate._FOLDERS if "stub" in folder or "cuda" in folder]
