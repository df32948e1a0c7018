"""The work of a training step is counted as it is published, on three backends."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from fork_server import python
from packages import need
from programs import ran

pytestmark = pytest.mark.timeout(600)  # several models are compiled, on busy machines, too

PROGRAM = Path(__file__).with_name("flops_program.py")
BACKENDS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
# GMAC per image of torchvision's weights (`_ops`; of Keras' ResNet-50, which strides earlier, by He
# et al.), and of the first layer, whose input has no gradient.
PUBLISHED = {
    "MobileNetV2": (0.301, 112**2 * 32 * 27),
    "torchvision's": (4.089, 112**2 * 64 * 147),
    "ResNet50": (3.8, 112**2 * 64 * 147),
    "VGG16": (15.470, 224**2 * 64 * 27),
    "EfficientNetB0": (0.386, 112**2 * 32 * 27),
}
DENSE = 32 * 64 + 64  # multiply-adds, forward; without an input's gradient, 2 and 3 times in all
TRAINED = 2 * (2 * 32 * 64 + 3 * 64)
CONVOLVED = 2 * (2 * 36 * 8 * 27 + 3 * (36 * 8 * 9 + 16 * 16 * 72 + 16 * 16 * 4 * 4 + 4))
# Two layers of width 32: 4 square projections, and 2 by 4 times the width; 50 words.
PARAMETERS = 2 * (4 * 32**2 + 2 * 4 * 32**2) + 32 * 50
TOKENS, ATTENTION = 24, 12 * 2 * 24 * 32


def run(backend: str, *args: str) -> dict:
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | {
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = ran(*python("keras"), PROGRAM, *args, env=environment, timeout=580)
    return json.loads(done.stdout.splitlines()[-1])


@cache
def fits(backend: str) -> dict:
    return run(backend, "fits")


COUNTED = {
    **dict.fromkeys(
        ("plain", "jit", "several_steps", "mixed", "accumulation", "subclassed", "again", "remat"), TRAINED
    ),
    "convolution": CONVOLVED,  # strided, padded, depthwise and transposed
    "sizes_left_open": CONVOLVED,  # by the dataset: the model declares them
    "own_step": TRAINED + 2 * DENSE,  # as it runs
    "given": 123.0,  # what the user states counts
}
LEFT_OUT = {
    "tensorflow": {"remat"},
    "jax": {"sizes_left_open", "given"},
    "torch": {"several_steps", "jit", "sizes_left_open", "given"},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_way_of_training_makes_no_difference(backend):
    found = fits(backend)
    known = {name: found[name] for name in COUNTED if name in found}
    assert known == {name: COUNTED[name] for name in known}
    assert COUNTED.keys() - known.keys() == LEFT_OUT[backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transformer_is_six_times_its_parameters_and_its_attention(backend):
    per_token = fits(backend)["transformer"] / TOKENS
    assert per_token == pytest.approx(6 * PARAMETERS + ATTENTION, rel=0.001)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_foreign_operation_is_named_and_there_is_no_number(backend):
    named = {"tensorflow": "Python function", "jax": "pure_callback", "torch": "somebody.same"}
    said = fits(backend)["foreign"]
    assert isinstance(said, str) and named[backend] in said


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_step_is_neither_run_nor_traced_once_more(backend):
    without, with_us, own_later, own_after = fits(backend)["untouched"]
    assert with_us == without
    assert own_later and own_after


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_eager_step(backend):
    counted = fits(backend)["eager"]
    if backend == "torch":  # which always is
        assert counted == TRAINED
    else:
        assert isinstance(counted, str)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "model",
    [
        "MobileNetV2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("torchvision's", "ResNet50", "VGG16", "EfficientNetB0")
        ),
    ],
)
def test_applications_against_published_figures(backend, model):
    gmac, first = PUBLISHED[model]
    forward, training = run(backend, "published", model)[model]
    assert forward == pytest.approx(gmac, rel=0.03)
    assert training == pytest.approx(3 * forward - first / 1e9, rel=0.001)


def test_nothing_is_watched_where_anything_is_compiled():
    """A layer may call a function that `torch.compile` made, which is compiled as it first runs."""
    need("torch")
    program = """
import torch
from gpu_util_callback.backends.torch.flops import is_compiled
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print(is_compiled(model))
function = torch.compile(lambda x: x + 1)
print(is_compiled(model))
"""
    done = subprocess.run([*python("torch"), "-c", program], text=True, capture_output=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_an_operation_of_matrices_without_a_formula_is_named_and_there_is_no_number():
    """PyTorch runs a frozen transformer's layer as one operation; its formulas are for few others."""
    need("torch")
    program = """
import torch
from gpu_util_callback.backends.torch.flops import counted
square, cube = torch.ones(4, 4), torch.ones(2, 4, 4)
layer = torch.nn.TransformerEncoderLayer(4, 2, batch_first=True).eval()
calls = [layer, lambda x: torch.addbmm(square, x, x), lambda x: square.clone().addmm_(x[0], x[1])]
with torch.no_grad():
    for call in calls:
        _, work = counted(call, (cube,))
        print(*work.missing, len(work.flops))
"""
    done = subprocess.run([*python("torch"), "-c", program], text=True, capture_output=True)
    named = ("aten._transformer_encoder_layer_fwd", "aten.addbmm", "aten.addmm_")
    assert done.stdout.splitlines() == [f"{name} 0" for name in named], done.stderr
