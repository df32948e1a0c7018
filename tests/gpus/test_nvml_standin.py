"""The stand-in is what the binding takes it for: layouts, codes, missing functions, curves."""

import ctypes
import subprocess
import sys

import pynvml
import pytest
from nvml import Scenario, environment


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


def test_answers_through_the_real_binding(play):
    scenario = Scenario(time="manual", driver="575.1", cuda=12080)
    scenario.gpu("h100").curve("utilization", [(0, 90), (5, 10)]).curve("temperature:0", [(0, 40), (10, 60)], "line")
    library = play(scenario)
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "575.1"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12080
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetPciInfo(gpu).busId == "00000000:17:00.0"
    for t, busy, warm in ((0, 90, 40), (4.9, 90, 49), (5, 10, 50), (99, 10, 60)):
        library.set_time(t)
        assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == busy
        assert pynvml.nvmlDeviceGetTemperatureV(gpu, 0) == warm
    assert library.calls("nvmlDeviceGetUtilizationRates") == 4


def test_counters_grow_by_their_rate_and_wrap(play):
    scenario = Scenario(time="manual")
    scenario.gpu("h100").counter(197, [(0, 1000), (2, 3000)], wrap=4096, start=96)
    library = play(scenario)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for t, count in ((0, 96), (1, 1096), (2, 2096), (2.5, 3596), (3, 5096 - 4096)):
        library.set_time(t)
        assert pynvml.nvmlDeviceGetFieldValues(gpu, [197])[0].value.ullVal == count


@pytest.mark.parametrize("code", [2, 3, 4, 6, 9, 10, 13, 15, 18, 21, 999])
def test_a_scripted_code_reaches_python_as_the_binding_s_error(play, code):
    scenario = Scenario()
    scenario.gpu()
    scenario.call("nvmlDeviceGetPowerUsage", code=code, after=1, times=1)
    play(scenario)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 500_000
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetPowerUsage(gpu)
    assert caught.value.value == code
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 500_000


def test_a_function_that_an_old_driver_lacks_is_not_there(play):
    scenario = Scenario().without("nvmlDeviceGetComputeRunningProcesses_v3")
    scenario.gpu()
    play(scenario)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLLibraryMismatchError):
        pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 500_000  # and nothing else is gone


def test_loads_as_the_driver_library_of_a_subprocess(standin_folder):
    scenario = Scenario()
    scenario.gpu(name="Our own board")
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pynvml as p; p.nvmlInit();print(p.nvmlDeviceGetName(p.nvmlDeviceGetHandleByIndex(0)))",
        ],
        env=environment(scenario, standin_folder),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out.strip() == "Our own board"
