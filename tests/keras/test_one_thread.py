"""A process with one CPU, or one thread for TensorFlow's ops: a step is still no wait for input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tensorflow as tf
from fork_server import python
from programs import ran

from gpu_util_callback.backends.tensorflow.iterator import holds_batches

HERE = Path(__file__).resolve().parent

PROGRAM = """
import json, sys
import numpy as np
from fit_truth import given, ms, small_model
from injected import Truth
from injected_fit import recorded_fit
from pathlib import Path

found = {}
for kind in ("tf.data", "unknown length"):
    for steps in (1, 4):
        truth = Truth([0.0] * 24)
        model = small_model(truth, work_ms=10)
        model.compile("sgd", "mse", steps_per_execution=steps, jit_compile=False)
        recording = recorded_fit(model, Path(sys.argv[1]) / f"{kind}-{steps}", **given(kind, truth))
        wait = float(np.median(ms(recording, "input_wait_ns")[steps:]))
        found[f"{kind}, {steps} a call"] = wait, float(np.median(ms(recording, "duration_ns")))
print(json.dumps(found))
"""


@pytest.mark.real_clock("a wait is held against a step of the same fit")
@pytest.mark.parametrize("threads", ["1", pytest.param("4", marks=pytest.mark.slow)])
def test_the_step_is_no_wait(threads, tmp_path):
    environment = {
        **os.environ,
        "TF_NUM_INTEROP_THREADS": threads,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1] / "harness" / "support", HERE.parents[1]))),
    }
    done = ran(*python("keras"), "-c", PROGRAM, tmp_path, env=environment)
    for case, (wait, step) in json.loads(done.stdout.splitlines()[-1]).items():
        assert wait < 0.3 * step, f"{case}: {wait:.1f} of {step:.1f} ms"


@pytest.mark.parametrize(("threads", "held"), [("1", True), ("8", False)])
def test_beside_a_gpu_only_where_there_is_one_thread(threads, held, monkeypatch):
    iterator = iter(tf.data.Dataset.range(1))
    assert holds_batches(iterator)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", threads)
    assert holds_batches(iterator) is held
    assert not holds_batches(object()), "nobody knows where its batches are"
