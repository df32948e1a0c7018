"""The measured input wait against the wait stamped inside the test's own pipeline."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import PULLED, UNROLLED, given, ms, small_model
from injected import BATCH, PER_DELAY, SLACK_MS, WIDTH, Truth, close, medians
from injected_fit import Wanted, recorded_fit
from tensorflow.python.framework import config as tf_config

MODES = {
    "plain": {},
    "jit": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "accumulation": {"optimizer": "accumulate"},
    "determinism": {},
}
# A step much shorter than most delays, and one longer than all but the longest.
WORK_MS = {"short": 0, "long": 15}

# Every kind, every mode and both lengths of a step, in few fits.
COVERING = [
    ("tf.data", "plain", "short"),
    ("tf.data + prefetch", "plain", "long"),
    ("tf.data + prefetch", "jit", "short"),
    ("unknown length", "jit", "short"),
    ("unknown length", "determinism", "long"),
    ("generator", "plain", "long"),
    ("generator", "determinism", "short"),
    ("PyDataset", "eager", "short"),
    ("PyDataset", "accumulation", "long"),
    ("numpy", "plain", "short"),
    ("numpy", "eager", "long"),
]


@pytest.fixture
def determinism(request):
    if request.node.callspec.params["mode"] == "determinism":
        keras.utils.set_random_seed(1)
        tf_config.enable_op_determinism()
        yield
        tf_config.disable_op_determinism()
    else:
        yield


def compiled(model, mode: str, **more):
    arguments = {"optimizer": "sgd", "loss": "mse", "jit_compile": False, **MODES[mode], **more}
    if arguments["optimizer"] == "accumulate":
        arguments["optimizer"] = keras.optimizers.SGD(gradient_accumulation_steps=4)
    model.compile(**arguments)
    return model


@pytest.mark.real_clock("milliseconds of waits that are injected")
@pytest.mark.parametrize(("kind", "mode", "step"), COVERING)
def test_wait_is_the_truth(kind, mode, step, determinism, tmp_path):
    truth = Truth([0.0] * len(Truth()) if kind == "numpy" else None)
    worker = truth if mode != "jit" else None
    model = compiled(small_model(worker, WORK_MS[step]), mode)
    recording = recorded_fit(model, tmp_path / "logs", callbacks=[Wanted(truth)], **given(kind, truth))
    assert len(recording.steps["step"]) == len(truth)
    assert (recording.steps["estimated"] == 0).all()
    expected = {"determinism": "graph (determinism)", "eager": "eager"}.get(mode, "graph")
    assert recording.facts["fit"]["timing"] == expected
    # Building the function is no step's own work, whichever way it is found out.
    built = np.flatnonzero(recording.steps["compile_ns"]).tolist()
    assert built == ([] if mode == "eager" else [0]), built
    wait = np.zeros(len(truth)) if kind == "numpy" else truth.wait_ms(ahead=True)
    ahead = kind not in PULLED and kind != "numpy"
    if step == "long" and ahead and mode != "determinism":  # nothing runs ahead there
        hidden = slice(PER_DELAY + 3, 2 * PER_DELAY)
        assert np.median(wait[hidden]) < 0.5, "the delay was meant to be hidden by the step"
    # The truth begins at Keras' hook, a wait where the graph asks for its batch: the way there took 0.2 to 0.8 ms
    # on the machines seen. Where steps run eagerly, Keras' Python behind each is in it, too; where Python fetches,
    # a batch that is ready still has to be handed from thread to thread.
    measured, handed = ms(recording, "input_wait_ns"), mode in ("determinism", "eager")
    assert close(measured, wait, handed, most_ms=0.5), (medians(measured), medians(wait))


# Every delay with every length of a step and in both modes, in half of the fits.
EXECUTIONS = [
    (0, 1, "plain"),
    (0, 8, "determinism"),
    (3, 1, "determinism"),
    (3, 8, "plain"),
    (12, 1, "plain"),
    (12, 8, "determinism"),
    (12, 8, "eager"),
]


@pytest.mark.timed
@pytest.mark.parametrize(("delay_ms", "work_ms", "mode"), EXECUTIONS)
def test_waits_under_several_steps_per_execution(delay_ms, work_ms, mode, determinism, tmp_path):
    """The host fetches ahead while the step works: only what delays a step is a wait."""
    n = 8 * 4 + (0 if UNROLLED else 3)  # the last execution is partial
    truth = Truth([float(delay_ms)] * n)
    model = compiled(small_model(truth, work_ms), mode, steps_per_execution=8)
    recording = recorded_fit(model, tmp_path / "logs", callbacks=[Wanted(truth)], **given("tf.data", truth))
    assert recording.steps["step"].tolist() == list(range(n))
    assert recording.steps["batches"].tolist() == [8] * 32 + [3] * (n - 32)
    ahead = mode != "eager"  # there Python fetches one batch at a time
    assert (recording.steps["estimated"] == int(ahead)).all()
    # Eagerly each batch is made when it is fetched; Keras' Python before that is no wait.
    late = truth.wait_ms(ahead=True) if ahead else truth.making_ms()
    wait, real = ms(recording, "input_wait_ns")[8:], late[8:]
    assert wait.sum() == pytest.approx(real.sum(), rel=0.10, abs=SLACK_MS * len(wait))


def test_determinism_with_a_train_function_of_ones_own(tmp_path):
    """It calls `next` in the graph, where TensorFlow's own clock may not be read."""

    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            @tf.function
            def train(iterator):
                return self.train_step(next(iterator))

            self.train_function = train
            return train

    keras.utils.set_random_seed(1)
    tf_config.enable_op_determinism()
    try:
        model = Own([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        x = np.ones((BATCH * 12, WIDTH), np.float32)
        recording = recorded_fit(model, tmp_path / "logs", x=x, y=x[:, :1], batch_size=BATCH, epochs=2)
    finally:
        tf_config.disable_op_determinism()
    assert model.optimizer.iterations == 24
    assert recording.steps["step"].tolist() == list(range(24))
    assert (recording.steps["input_wait_ns"] >= 0).all()
    assert recording.facts["fit"]["timing"] == "graph (determinism)"


def test_determinism_switched_on_between_two_fits(tmp_path):
    """The first fit's trace reads TensorFlow's clock, which raises in the second."""
    keras.utils.set_random_seed(1)
    model = compiled(small_model(), "plain")
    x = np.ones((BATCH * 12, WIDTH), np.float32)
    given = {"x": x, "y": x[:, :1], "batch_size": BATCH}
    recorded_fit(model, tmp_path / "logs", **given)
    tf_config.enable_op_determinism()
    try:
        recording = recorded_fit(model, tmp_path / "logs", **given)
    finally:
        tf_config.disable_op_determinism()
    assert model.optimizer.iterations == 24
    assert recording.status == "ended"
    assert (recording.steps["input_wait_ns"] >= 0).all()
