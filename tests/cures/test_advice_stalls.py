"""Advice executed, what stops training: callbacks, checkpoints, validation, compilation."""

import sys
import time
from types import SimpleNamespace

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402
from advised import Given, apply, assert_faster, assert_gone, assert_kept, only, paced  # noqa: E402
from timed_fit import Timed, fit, labelled, pause  # noqa: E402

from gpu_util_callback import GpuUtilMonitor, read_recordings  # noqa: E402
from gpu_util_callback.diagnosis import run_report  # noqa: E402

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("fresh_keras")]


class Saving(Timed):
    """A model whose saving takes its time, as to a network drive."""

    SECONDS = 0.3

    def save(self, *args, **kwargs):
        time.sleep(self.SECONDS)

    save_weights = save


def test_a_callback_after_every_batch_works_every_hundredth(tmp_path):
    class Watcher(keras.callbacks.Callback):
        code = "..."

        def on_train_batch_end(self, batch, logs=None):
            apply(self.code, work=lambda: time.sleep(0.014), batch=batch)

    before = fit(tmp_path / "before", Timed(10), labelled(120), callbacks=[Watcher()])
    span = only(before, "host_stall")
    assert span["title"] == "Watcher stalls training"
    assert (span["start_step"], span["end_step"]) == (0, 120)
    Watcher.code = span["advice"]["code"]
    after = fit(tmp_path / "after", Timed(10), labelled(120), callbacks=[Watcher()])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
@pytest.mark.parametrize("freq, each", [("batch", True), ("epoch", True), (50, False)])
def test_tensorboard_makes_no_summaries_between_epochs(tmp_path, freq, each, monkeypatch):
    make = tf.summary.scalar

    def slow(name, data, **kwargs):  # as with many metrics
        time.sleep(0.012)
        return make(name, data, **kwargs)

    monkeypatch.setattr(tf.summary, "scalar", slow)
    given = {"update_freq": freq, "write_steps_per_second": each}
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"), **given)
    before = fit(tmp_path / "before", Timed(16), labelled(120), callbacks=[board])
    span = only(before, "host_stall")
    assert span["title"] == "TensorBoard stalls training"
    *made, used = span["advice"]["code"].splitlines()
    once = apply("\n".join(made), keras=keras)["OncePerEpoch"]
    [quiet] = apply(used, OncePerEpoch=Given(once, board.log_dir, **given))["callbacks"]
    after = fit(tmp_path / "after", Timed(16), labelled(120), callbacks=[quiet])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
def test_the_progress_bar_is_a_line_an_epoch(tmp_path, monkeypatch):
    class SlowTerminal:
        def write(self, text):
            if "\b" in text or "\r" in text or "step" in text:
                time.sleep(0.01)
            return len(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", SlowTerminal())
    # The bar is drawn every twentieth of a second at most.
    given = Given(fit, tmp_path / "before", Timed(60), labelled(50), verbose=1)
    before = given(...)
    given.arguments = (tmp_path / "after", Timed(60), labelled(50))
    apply(only(before, "host_stall")["advice"]["code"], model=SimpleNamespace(fit=given))
    assert_kept(before, given.result, "host_stall")


class Evaluated(Timed):
    def test_step(self, data):
        x, y = data
        return super().test_step((pause(x, self.work_ms), y))


@pytest.mark.slow
def test_validation_is_made_on_a_part_of_its_arrays(tmp_path):
    """Keras cuts all of them into as many batches as it is asked for, unless told their size."""
    x = np.ones((160, 8), "float32")
    kwargs = {"y": x[:120, :1], "batch_size": 4, "epochs": 4, "validation_data": (x, x[:, :1])}
    given = Given(fit, tmp_path / "before", Evaluated(40), x[:120], **kwargs)
    before = given(...)
    given.arguments = (tmp_path / "after", Evaluated(40), x[:120])
    apply(only(before, "host_stall")["advice"]["code"], model=SimpleNamespace(fit=given))
    samples = [len(read_recordings(tmp_path / name)[0].validation_steps["step"]) for name in ("before", "after")]
    assert samples[0] == 160 and samples[1] < 40
    assert_kept(before, given.result, "host_stall")


def loop(log_dir, logs: str = "...", validates: str = "...") -> dict:
    """A loop of somebody's own; two of its lines can be replaced."""
    epochs, steps = (3, 40) if logs else (12, 8)
    with GpuUtilMonitor(log_dir, trace="off", report=False) as monitor:
        for epoch in range(epochs):
            for step, _ in enumerate(monitor.batches(np.ones((steps, 4)))):
                time.sleep(0.04)
                if logs:
                    apply(logs, work=lambda: time.sleep(0.03), step=step, monitor=monitor)
            if validates:
                apply(validates, work=lambda: time.sleep(0.3), epoch=epoch, monitor=monitor)
    [recording] = read_recordings(log_dir)
    return run_report(recording)


@pytest.mark.slow
@pytest.mark.parametrize("part, phase", [("logs", "logging"), ("validates", "validation")])
def test_a_loop_of_ones_own_logs_and_validates_less(tmp_path, part, phase):
    lines = {"logs": "", "validates": "", part: f'with monitor.phase("{phase}"): ...'}
    before = loop(tmp_path / "before", **lines)
    code = only(before, "host_stall")["advice"]["code"]
    assert f'monitor.phase("{phase}")' in code
    after = loop(tmp_path / "after", **lines | {part: code})
    if part == "logs":
        assert_kept(before, after, "host_stall")
        return
    # Of twelve short epochs some keep their validation, which is still a good part of the time.
    saves = only(before, "host_stall")["saves_s"]
    assert_faster(paced(before, "host_stall"), paced(after, "host_stall"), saves)


@pytest.mark.slow
def test_a_short_training_saves_once(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    saver = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    before = fit(tmp_path / "before", Saving(16), labelled(20), epochs=8, callbacks=[saver])
    span = only(before, "host_stall")
    assert "after fit, instead of ModelCheckpoint" in span["advice"]["code"]
    model = Saving(16)
    started = time.perf_counter()
    after = fit(tmp_path / "after", model, labelled(20), epochs=8)
    apply(span["advice"]["code"], model=model)
    assert time.perf_counter() - started > model.SECONDS
    assert_gone(after, "host_stall")
    assert_faster(before["wall_s"], after["wall_s"] + model.SECONDS, span["saves_s"])
