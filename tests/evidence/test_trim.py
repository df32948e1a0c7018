"""A cut XSpace is still one, holds the steps that were asked for, and says the same of them."""

import numpy as np
import pytest
from evidence.trim import trim_xspace
from evidence.xspace_messages import message_class
from xspace_builder import Gpu, Space

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

STEPS = 8


def window(gpus=2):
    """Eight marked steps of 1 ms with ten kernels each, and what profilers write beside them."""
    space = Space(host="secret-host")
    thread = space.host.line("python", 7)
    devices = [Gpu(space, index, thread) for index in range(gpus)]
    pool = space.host.line("pool", 9)
    for step in range(STEPS):
        begin = 1000.0 * step
        thread.event("train", begin, 990, step_num=100 + step, _r=1)
        for number in range(10):
            pool.event("ThreadpoolListener::Record", begin + number, 0.1)
            for gpu in devices:
                at = begin + 90 * number + 60
                gpu.launch(f"kernel_{step}_{number}", at - 55, at, 40, tf_op=f"dense_{number}")
    space.plane("/host:metadata").line("x", 1).event("program", 0, 1, hlo=b"x" * 50_000)
    space.message.errors.append(b"an error")
    return space.bytes()


def analysed(data, tmp_path, name):
    path = tmp_path / f"{name}.xplane.pb"
    path.write_bytes(data)
    [process] = analyse(read_trace(str(path))).processes
    return process


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_steps_that_stay_are_the_same(tmp_path, steps):
    whole = analysed(window(), tmp_path, "whole")
    data = trim_xspace(window(), steps)
    cut = analysed(data, tmp_path, "cut")
    assert len(data) < len(window()) / 4
    assert cut.steps.label.tolist() == list(range(101, 101 + steps))
    mine = np.isin(whole.steps.label, cut.steps.label)
    for before, after in zip(whole.devices, cut.devices, strict=True):
        for category, column in after.account.steps.items():
            np.testing.assert_allclose(
                column[: steps - 1], before.account.steps[category][mine][: steps - 1], atol=1e6, err_msg=category
            )
        assert {kernel.name for kernel in after.kernels} >= {
            f"kernel_{step + 1}_{number}" for step in range(steps) for number in range(10)
        }
        assert after.launches.linked == after.launches.kernels


def test_what_names_people_or_machines_goes():
    cut = message_class("XSpace").FromString(trim_xspace(window(), 2))
    assert {plane.name for plane in cut.planes} == {
        b"/device:GPU:0",
        b"/device:GPU:1",
        b"/host:CPU",
        b"Task Environment",
    }
    assert not cut.hostnames and not cut.errors
    assert b"secret-host" not in cut.SerializeToString()
    names = {e.value.name for plane in cut.planes for e in plane.event_metadata}
    assert b"kernel_7_0" not in names and b"ThreadpoolListener::Record" not in names


def test_a_trace_without_markers_stays_whole(tmp_path):
    space = Space()
    gpu = Gpu(space, 0, space.host.line("python", 7))
    for number in range(5):
        gpu.launch("kernel", 100 * number, 100 * number + 10, 50)
    before, after = (
        analysed(data, tmp_path, name) for data, name in ((space.bytes(), "a"), (trim_xspace(space.bytes(), 1), "b"))
    )
    assert before.devices[0].kernels == after.devices[0].kernels


@pytest.mark.parametrize("data", [b"", b"no trace", b"\x0a\xff\xff\xff"])
def test_what_is_no_xspace_is_refused(data):
    with pytest.raises(ValueError, match="not an XSpace file"):
        trim_xspace(data)
