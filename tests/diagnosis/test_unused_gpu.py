"""Why no GPU is used: one wording for the recording and the rule, for each framework."""

import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.unused_gpu import checked, why_unused

SEEN = {"nvml_index": 0, "visible": True}
HIDDEN = {"nvml_index": 0, "visible": False}


@pytest.mark.parametrize(
    "framework, cuda_build, environ, there, never",
    [
        ("tensorflow", False, {}, "tensorflow[and-cuda]", "torch"),
        ("torch", False, {}, "pip install --force-reinstall torch", "tensorflow"),
        ("jax", None, {}, "gpu-util doctor", "tensorflow"),
        ("jax", None, {"JAX_PLATFORMS": "cpu"}, "unset JAX_PLATFORMS", "doctor"),
        ("jax", None, {"JAX_PLATFORMS": "cuda,cpu"}, "gpu-util doctor", "unset"),
        ("tensorflow", True, {"JAX_PLATFORMS": "cpu"}, "gpu-util doctor", "unset"),
        ("", None, {}, "gpu-util doctor", "pip"),
    ],
)
def test_the_cure_is_the_frameworks_own(framework, cuda_build, environ, there, never):
    why = why_unused(framework, 1, 1, cuda_build, environ)
    assert there in why["code"] and never not in why["code"]
    assert checked(framework, None, [SEEN], cuda_build, environ) == [why]


@pytest.mark.parametrize(
    ("framework_gpus", "driver_gpus", "cuda_build", "words"),
    [
        (None, [], None, None),
        ([], [], True, None),
        ([{}], [SEEN], True, None),
        ([{}], [SEEN, HIDDEN], None, None),
        ([{}], [SEEN, SEEN, SEEN], None, None),
        (None, [SEEN], False, "without CUDA"),
        ([], [SEEN, SEEN], True, "sees none"),
        ([], [SEEN], None, "sees none"),
        ([], [HIDDEN] * 2, None, "CUDA_VISIBLE_DEVICES=-1 hides all"),
    ],
)
def test_the_recording_says_why_none_of_the_gpus_is_used(framework_gpus, driver_gpus, cuda_build, words):
    found = checked("", framework_gpus, driver_gpus, cuda_build, {"CUDA_VISIBLE_DEVICES": "-1"})
    assert len(found) == (words is not None)
    for entry in found:
        assert words in entry["reason"] and entry["cure"]


ON_THE_SPOT = checked("jax", None, [SEEN], None, {"JAX_PLATFORMS": "cpu"})
OLDER = {"name": "torch", "backend": "torch", "version": "2.13", "cuda_build": False}


@pytest.mark.parametrize(
    "facts, title, text, code",
    [
        (
            {"gpu_check": ON_THE_SPOT, "framework": {"name": "jax", "backend": "jax", "version": "0.10.2"}},
            "JAX does not use the NVIDIA H200",
            ON_THE_SPOT[0]["reason"],
            "unset JAX_PLATFORMS",
        ),
        ({"framework": OLDER}, "PyTorch", "PyTorch was built without CUDA", "pip install --force-reinstall torch"),
    ],
    ids=["seen on the spot", "an older recording, by its facts"],
)
def test_the_rule_says_what_was_seen(facts, title, text, code):
    run = Generated(seed=1, gpus=[GPU | {"used_by_framework": False}], **facts)
    run.steps(300, step_ms=30)
    [finding] = run.diagnose()["findings"]
    assert finding["title"].startswith(title) and text in finding["advice"]["text"]
    assert finding["advice"]["code"].startswith(code)
