"""What the CUDA driver of this process says, without starting it."""

import json
import sys

from cuda import build_cuda, prepend
from nvml import Scenario, environment
from programs import ran

FIRST = "1a2b3c4d-1a2b-3c4d-5e6f-000068313030"
SECOND = "2b3c4d5e-1a2b-3c4d-5e6f-000074343030"

CODE = """
import ctypes, json, os, sys, time
from gpu_util_callback.gpus import FrameworkGpu, Sampler, _mapping
from gpu_util_callback.recording.clock import Clock
if "load" in sys.argv:
    library = ctypes.CDLL("libcuda.so.1")
sampler = Sampler(Clock(), framework_gpus=[FrameworkGpu(0), FrameworkGpu(1)])
sampler.start()
end = time.time() + 10
while not sampler.gpus and time.time() < end:
    time.sleep(0.01)
time.sleep(0.2)
sampler.stop()
print(json.dumps([len(_mapping.cuda_gpus()), sampler.gpus]))
"""


def run(folder, tmp_path, *arguments, **extra):
    scenario = Scenario()
    for profile in ("h100", "t4"):  # unlike GPUs: CUDA's order is not NVML's
        gpu = scenario.gpu(profile)
        gpu.texts["uuid"] = f"GPU-{(FIRST, SECOND)[gpu.index]}"
    env = environment(scenario, folder, CUDA_STANDIN=f"0000:18:00.0={SECOND},0000:17:00.0={FIRST}", **extra)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    prepend(env, "LD_LIBRARY_PATH", build_cuda(tmp_path))
    done = ran(sys.executable, "-c", CODE, *arguments, env=env, timeout=30)
    return json.loads(done.stdout)


def test_cuda_s_order_is_taken_where_cuda_is_up(standin_folder, tmp_path):
    count, gpus = run(standin_folder, tmp_path, "load", CUDA_STANDIN_UP="1")
    assert count == 2
    assert [(g["index"], g["nvml_index"], g["matched_by"]) for g in gpus] == [(0, 1, "cuda"), (1, 0, "cuda")]


def test_cuda_is_not_started_by_us(standin_folder, tmp_path):
    count, gpus = run(standin_folder, tmp_path, "load")  # loaded, and nobody called cuInit
    assert count == 0
    assert [g["matched_by"] for g in gpus] == ["guess", "guess"]


def test_cuda_is_not_loaded_by_us(standin_folder, tmp_path):
    count, _ = run(standin_folder, tmp_path, CUDA_STANDIN_UP="1")
    assert count == 0
