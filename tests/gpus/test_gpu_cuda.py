"""What the CUDA driver of this process says, without starting it."""

import json
import sys

import pytest
from cuda import build_cuda, prepend
from nvml import Scenario, environment
from programs import ran

FIRST = "1a2b3c4d-1a2b-3c4d-5e6f-000068313030"
SECOND = "2b3c4d5e-1a2b-3c4d-5e6f-000074343030"

CODE = """
import ctypes, json, sys
from types import SimpleNamespace
from gpu_util_callback.gpus import FrameworkGpu, Sampler, _mapping
from gpu_util_callback.recording.clock import Clock
loads, *missing = json.loads(sys.argv[1])
if loads:
    library = ctypes.CDLL("libcuda.so.1")
class Older:
    def __getattr__(self, name):
        if name in missing:
            raise AttributeError(name)
        return getattr(library, name)
if missing:
    _mapping._already_loaded = Older
sampler = Sampler(Clock(), framework_gpus=[FrameworkGpu(0), FrameworkGpu(1)])
sampler._open(SimpleNamespace())
known = [[bool(gpu.uuid), bool(gpu.pci_bus_id)] for gpu in _mapping.cuda_gpus()]
print(json.dumps([known, [[gpu["index"], gpu["nvml_index"], "not certain" in gpu["label"]] for gpu in sampler.gpus]]))
"""
UP = {"CUDA_STANDIN_UP": "1"}
GUESSED = [[0, 0, True], [1, 1, True]]


@pytest.mark.parametrize(
    ("loads", "up", "known", "gpus"),
    [
        # CUDA's order is taken where CUDA is up: of unlike GPUs it is not NVML's.
        ([True], UP, [[True, True]] * 2, [[0, 1, False], [1, 0, False]]),
        ([True, "cuDeviceGetUuid", "cuDeviceGetUuid_v2"], UP, [[False, True]] * 2, [[0, 1, False], [1, 0, False]]),
        ([True, "cuDeviceGetPCIBusId"], UP, [[True, False]] * 2, [[0, 1, False], [1, 0, False]]),
        ([True], {}, [], GUESSED),  # loaded, and nobody called cuInit: we do not
        ([False], UP, [], GUESSED),  # nor do we load it
    ],
)
def test_cuda_is_asked_where_it_is_up(standin_folder, tmp_path, loads, up, known, gpus):
    scenario = Scenario()
    for profile in ("h100", "t4"):
        gpu = scenario.gpu(profile)
        gpu.texts["uuid"] = f"GPU-{(FIRST, SECOND)[gpu.index]}"
    cuda = {"CUDA_STANDIN": f"0000:18:00.0={SECOND},0000:17:00.0={FIRST}"} | up
    env = environment(scenario, standin_folder, **cuda)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    prepend(env, "LD_LIBRARY_PATH", build_cuda(tmp_path))
    done = ran(sys.executable, "-c", CODE, json.dumps(loads), env=env, timeout=60)
    assert json.loads(done.stdout) == [known, gpus]
