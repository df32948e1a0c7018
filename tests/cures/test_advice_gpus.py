"""Advice executed, over the stand-in driver: the printed line is run in a world of made-up GPUs.

The stand-in has no physics: what a GPU does after the advice is set by the test, from what the line
really changed (the variables it sets, the arguments it passes, the limit it raises). Times are
real: the model's step takes as long as such a GPU would need.
"""

import os
import shlex
from types import SimpleNamespace

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from advised import apply, assert_gone, assert_kept, findings, only  # noqa: E402
from nvml import GIB, NOBODY, Scenario, loaded  # noqa: E402
from timed_fit import Timed, fit, labelled  # noqa: E402

from gpu_util_callback.backends.tensorflow.runtime import TensorFlowRuntime  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_keras")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Runs a training beside a scenario's GPUs, of which TensorFlow uses `used`."""

    def run(scenario: Scenario, name: str, train, used: tuple[int, ...] = (0,), memory=None) -> dict:
        devices = [
            {
                "index": place,
                "name": gpu.texts["name"],
                "uuid": gpu.texts["uuid"],
                "pci_bus_id": gpu.texts["pci"],
                "compute_capability": "9.0",
            }
            for place, gpu in enumerate(scenario.gpus[number] for number in used)
        ]
        monkeypatch.setattr(TensorFlowRuntime, "devices", lambda self: devices or None)
        monkeypatch.setattr(TensorFlowRuntime, "memory", lambda self: memory or {})
        with loaded(scenario, library):
            return train(tmp_path / name)

    library = tmp_path / "standin"
    library.mkdir()
    return run


def h100s(*utilization: float) -> Scenario:
    scenario = Scenario()
    for pct in utilization:
        scenario.gpu("h100").curve("utilization", pct).process("self", GIB, sm=pct)
    return scenario


@pytest.mark.timed
def test_a_training_moves_to_the_gpu_that_is_free(world, monkeypatch):
    def scenario():
        both = h100s(98, 0)
        both.gpus[0].lines.clear()
        both.gpus[0].process("self", GIB, sm=48).process(NOBODY, 8 * GIB, sm=50)
        return both

    def train(step_ms):
        return lambda folder: fit(folder, Timed(step_ms), labelled(50))

    before = world(scenario(), "before", train(50), (0, 1))
    code = only(before, "contention")["advice"]["code"]
    words = shlex.split(code)
    for variable in [word for word in words if "=" in word]:
        monkeypatch.setenv(*variable.split("=", 1))
    assert "python" in words
    free = scenario()
    free.gpus[1].curve("utilization", 98)
    used = tuple(int(number) for number in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    assert used == (1,)
    after = world(free, "after", train(24), used)
    assert_kept(before, after, "contention")


def test_a_hidden_gpu_is_shown(world, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    def train(folder):
        return fit(folder, Timed(10), labelled(30))

    before = world(h100s(0), "before", train, used=())
    [said] = [one for one in before["unavailable"] if one["source"] == "GPUs"]
    assert "hides the 1 GPU" in said["reason"]
    assert said["cure"].startswith("unset CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv(said["cure"].split(",")[0].split()[1])
    after = world(h100s(95), "after", train)
    assert after["gpus"][0]["used_by_framework"] and after["findings"] == []
    assert [one for one in after["unavailable"] if one["source"] == "GPUs"] == []


def test_a_build_without_cuda_is_replaced(world):
    """Nothing is installed here: the line must be a command for the shell, the world changes."""

    def train(folder):
        return fit(folder, Timed(10), labelled(30))

    before = world(h100s(0), "before", train, used=())
    code = only(before, "cpu_fallback")["advice"]["code"]
    if tf.test.is_built_with_cuda():
        assert code == "gpu-util doctor"
    else:
        first, second = (shlex.split(part) for part in code.split(";"))
        assert first[:3] == ["pip", "uninstall", "-y"]
        assert second == ["pip", "install", "tensorflow[and-cuda]"]
    assert_gone(world(h100s(95), "after", train), "cpu_fallback")


def test_a_memory_limit_is_raised(world, monkeypatch):
    total = 80 * GIB

    def allocator(limit):
        used = min(limit, 20 * GIB) * 0.98
        return {0: {"allocator_used_bytes": used, "allocator_peak_bytes": used, "allocator_limit_bytes": limit}}

    def train(folder):
        return fit(folder, Timed(10), labelled(60))

    before = world(h100s(95), "before", train, memory=allocator(8 * GIB))
    limits = {"GPU:0": 8 * GIB}
    experimental = SimpleNamespace(set_memory_growth=lambda gpu, on: on and limits.update({gpu: total}))
    config = SimpleNamespace(list_physical_devices=lambda kind: list(limits), experimental=experimental)
    apply(only(before, "memory_limit")["advice"]["code"], tf=SimpleNamespace(config=config))
    after = world(h100s(95), "after", train, memory=allocator(limits["GPU:0"]))
    assert findings(after, "memory_limit") == [] and findings(after, "memory_pressure") == []
