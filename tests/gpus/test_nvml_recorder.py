"""The stand-in has the layout of the binding; what a driver answered can be recorded, and measures the same."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pynvml
from nvml import GIB, NOBODY, Scenario, environment

from harness import nvml_recorder
from harness.nvml_recorder import Recorder, Recording

TIMES = np.arange(0, 4, 0.1)
H200 = Path(__file__).parents[1] / "evidence" / "h200" / "jax-competitor.nvml"


def original():
    """A driver with a life of its own: changing values, errors, a missing function."""
    scenario = Scenario(time="manual", samples_period_ms=100, driver="555.5").without("nvmlDeviceGetTemperatureV")
    gpu = scenario.gpu("h100").curve("utilization", [(0, 90), (1.25, 30), (2.75, 70)])
    gpu.curve("power_mw", [(0, 300_000), (1.55, 650_000)]).process("self", 3 * GIB)
    gpu.process(NOBODY, GIB).curve("gpm:2", [(0, 50), (2, 75)]).curve("memory_used", 30 * GIB)
    gpu.counter(197, [(0, 2e9), (2, 6e9)])
    scenario.gpu("a100").without("encoder").curve("event_reasons", [(0, 1), (2.05, 4)])
    scenario.call("nvmlDeviceGetClockInfo", gpu=1, code=3)
    scenario.call("nvmlDeviceGetPowerUsage", gpu=1, code=999, from_=1.05, until=2.05)
    return scenario


def record(step, tmp_path):
    stepped = step(original())
    library = stepped.library
    recorder = Recorder(pynvml, lambda: library.time, library.start_us / 1e6, os.getpid())
    for t in TIMES:
        library.set_time(t)
        recorder.tick()
    file = tmp_path / "recorded.nvml"
    scenario = recorder.scenario(latency=False)
    absent = "".join(f"# absent {symbol}\n" for symbol in sorted(scenario.absent))
    file.write_text(absent + scenario.text())
    return file


def test_a_replayed_recording_measures_the_same(step, tmp_path):
    live = [step(original(), index=i).at(*TIMES) for i in range(2)]
    file = record(step, tmp_path)
    for index in range(2):
        replayed = step(Recording(file, time="manual"), index=index)
        assert replayed.reader.gpu.name == ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB")[index]
        rows = replayed.at(*TIMES)
        for name, values in live[index][f"gpu{index}"].items():
            np.testing.assert_allclose(rows[f"gpu{index}"][name], values, rtol=2e-3, atol=1e-3, err_msg=name)
    replayed = step(Recording(file, time="manual")).at(*TIMES)
    np.testing.assert_allclose(
        np.nanmean(replayed["gpu0/gpm"]["sm_active_pct"]), np.nanmean(live[0]["gpu0/gpm"]["sm_active_pct"]), rtol=0.05
    )
    for name in ("t", "utilization_pct"):
        np.testing.assert_allclose(
            replayed["gpu0/utilization"][name][:30], live[0]["gpu0/utilization"][name][:30], atol=5e-3
        )


def test_a_recorder_that_is_told_to_end_keeps_what_it_has(standin_folder, tmp_path):
    """As beside a training whose length nobody knows."""
    scenario = Scenario()
    scenario.gpu("h100").curve("utilization", 42)
    output = tmp_path / "h100.nvml"
    process = subprocess.Popen(
        [sys.executable, nvml_recorder.__file__, "--seconds", "600", "--output", str(output)],
        env=environment(scenario, standin_folder),
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"recording\n"
    time.sleep(0.5)
    process.terminate()
    process.stdout.close()
    assert process.wait(20) == 0
    assert " 42.0" in Recording(output).text()


def test_what_an_h200_answered_is_sampled(step):
    """A training at the card's power limit beside another process; both began some seconds before."""
    stepped = step(Recording(H200, time="manual"))
    rows = stepped.at(*np.arange(8, 12, 0.1))
    gauges, gpm = rows["gpu0"], rows["gpu0/gpm"]
    assert stepped.gpu.name == "NVIDIA H200"
    assert np.nanmean(gauges["utilization_pct"]) > 95
    assert 600_000 < np.nanmean(gauges["power_mw"]) < 720_000
    assert np.nanmean(gauges["throttle_power_pct"]) > 50
    assert 75 < np.nanmean(gpm["sm_active_pct"]) < 95


class _Layout(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("size", ctypes.c_long),
        ("offset", ctypes.c_long),
    )


def test_structures_have_the_layout_of_the_installed_binding(play):
    library = play(Scenario()).lib
    library.standin_layout.restype = ctypes.POINTER(_Layout)
    compared = 0
    while row := library.standin_layout(compared):
        layout = row.contents
        structure, field = getattr(pynvml, layout.type.decode()), layout.field.decode()
        if not field:
            assert ctypes.sizeof(structure) == layout.size, structure
        else:
            member = getattr(structure, field)
            assert member.offset == layout.offset, (structure, field)
            assert layout.size in (-1, member.size), (structure, field)
        compared += 1
    assert compared > 30
