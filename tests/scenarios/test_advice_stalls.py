"""Advice executed, what stops training: callbacks, checkpoints, validation, compilation."""

import sys
import time

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402
from advised import Given, apply, assert_gone, assert_kept, claims, only  # noqa: E402
from timed_fit import Timed, batches, fit, pause, slowly  # noqa: E402

from gpu_util_callback import GpuUtilMonitor, read_recordings  # noqa: E402
from gpu_util_callback.diagnosis import run_report  # noqa: E402


@pytest.fixture(autouse=True)
def quiet():
    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()


def labelled(count: int) -> tf.data.Dataset:
    return batches(count).map(lambda x: (x, x[:, :1]))


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
            apply(self.code, work=lambda: time.sleep(0.02), batch=batch)

    before = fit(tmp_path / "before", Timed(16), labelled(120), callbacks=[Watcher()])
    span = only(before, "host_stall")
    assert span["title"] == "Watcher stalls training"
    assert (span["start_step"], span["end_step"]) == (0, 120)
    Watcher.code = span["advice"]["code"]
    after = fit(tmp_path / "after", Timed(16), labelled(120), callbacks=[Watcher()])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
def test_a_callback_after_every_epoch_works_less_often(tmp_path):
    class Plots(keras.callbacks.Callback):
        code = "..."

        def on_epoch_end(self, epoch, logs=None):
            apply(self.code, work=lambda: time.sleep(0.2), epoch=epoch)

    before = fit(tmp_path / "before", Timed(16), labelled(12), epochs=30, callbacks=[Plots()])
    span = only(before, "host_stall")
    Plots.code = span["advice"]["code"]
    after = fit(tmp_path / "after", Timed(16), labelled(12), epochs=30, callbacks=[Plots()])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
@pytest.mark.parametrize("every, seconds", [(5, 0.1), ("epoch", 0.2)])
@pytest.mark.parametrize("saver", ["ModelCheckpoint", "BackupAndRestore"])
def test_a_model_is_saved_less_often(tmp_path, saver, every, seconds, monkeypatch):
    monkeypatch.setattr(Saving, "SECONDS", seconds)
    kind = getattr(keras.callbacks, saver)
    where = str(tmp_path / ("backup" if saver == "BackupAndRestore" else "model.weights.h5"))
    more = {"save_weights_only": True} if saver == "ModelCheckpoint" else {}
    if saver == "BackupAndRestore":  # it writes more than the model
        monkeypatch.setattr(kind, "_save_model", lambda self, *a, **k: time.sleep(seconds))
    given = Given(kind, where, save_freq=every, **more)
    names = {"keras": Names(callbacks=Names(**{saver: given}))}
    steps = {"epochs": 10 if every == 5 else 24}
    before = fit(tmp_path / "before", Saving(16), labelled(30), callbacks=[given(...)], **steps)
    span = only(before, "host_stall")
    apply(span["advice"]["code"], **names)
    after = fit(tmp_path / "after", Saving(16), labelled(30), callbacks=[given.result], **steps)
    assert_kept(before, after, "host_stall")


class Names:
    """A module as the user sees it, for the names in it that the test watches."""

    def __init__(self, **names):
        self.__dict__.update(names)


@pytest.mark.slow
def test_tensorboard_writes_once_an_epoch(tmp_path, monkeypatch):
    board = keras.callbacks.TensorBoard
    write = board.on_train_batch_end

    def slow_disk(self, batch, logs=None):
        if self.update_freq == 1:
            time.sleep(0.02)
        write(self, batch, logs)

    monkeypatch.setattr(board, "on_train_batch_end", slow_disk)
    given = Given(board, str(tmp_path / "board"), update_freq="batch")
    before = fit(tmp_path / "before", Timed(16), labelled(120), callbacks=[given(...)])
    span = only(before, "host_stall")
    assert span["title"] == "TensorBoard stalls training"
    apply(span["advice"]["code"], keras=Names(callbacks=Names(TensorBoard=given)))
    after = fit(tmp_path / "after", Timed(16), labelled(120), callbacks=[given.result])
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
    apply(only(before, "host_stall")["advice"]["code"], model=Names(fit=given))
    assert_kept(before, given.result, "host_stall")


class Tested(Timed):
    def test_step(self, data):
        x, y = data
        return super().test_step((pause(x, self.work_ms), y))


@pytest.mark.slow
@pytest.mark.parametrize("epochs, steps, batches_each, setting", [
    (10, 60, 20, "validation_freq"), (4, 40, 60, "validation_steps"),
])  # fmt: skip
def test_validation_is_made_less(tmp_path, epochs, steps, batches_each, setting):
    kwargs = {"epochs": epochs, "validation_data": labelled(batches_each)}
    given = Given(fit, tmp_path / "before", Tested(16), labelled(steps), **kwargs)
    before = given(...)
    span = only(before, "host_stall")
    assert setting in span["advice"]["code"]
    given.arguments = (tmp_path / "after", Tested(16), labelled(steps))
    apply(span["advice"]["code"], model=Names(fit=given))
    assert_kept(before, given.result, "host_stall")


@pytest.mark.slow
def test_validation_data_is_kept(tmp_path):
    val_ds = batches(25).map(slowly(40))
    kwargs = {"epochs": 8}
    before = fit(tmp_path / "before", Timed(16), labelled(40), validation_data=val_ds, **kwargs)
    span = only(before, "host_stall")
    assert span["saves_s"] < 0.875 * span["lost_s"], "the first validation still waits"
    names = apply(span["advice"]["code"], val_ds=val_ds)
    after = fit(
        tmp_path / "after", Timed(16), labelled(40), validation_data=names["val_ds"], **kwargs
    )
    assert_kept(before, after, "host_stall")


def loop(log_dir, logs: str = "...", validates: str = "...") -> dict:
    """A loop of somebody's own; two of its lines can be replaced."""
    with GpuUtilMonitor(log_dir, trace="off", report=False) as monitor:
        for epoch in range(12):
            for step, _ in enumerate(monitor.batches(np.ones((20, 4)))):
                time.sleep(0.01)
                if logs:
                    apply(logs, work=lambda: time.sleep(0.01), step=step, monitor=monitor)
            if validates:
                apply(validates, work=lambda: time.sleep(0.2), epoch=epoch, monitor=monitor)
    [recording] = read_recordings(log_dir)
    return run_report(recording)


@pytest.mark.parametrize("part, phase", [("logs", "logging"), ("validates", "validation")])
def test_a_loop_of_ones_own_logs_and_validates_less(tmp_path, part, phase):
    lines = {"logs": "", "validates": "", part: f'with monitor.phase("{phase}"): ...'}
    before = loop(tmp_path / "before", **lines)
    code = only(before, "host_stall")["advice"]["code"]
    assert f'monitor.phase("{phase}")' in code
    after = loop(tmp_path / "after", **lines | {part: code})
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
def test_new_shapes_are_padded_to_one(tmp_path):
    lengths = [32 + 12 * (i % 40) for i in range(60)]

    def model():
        made = keras.Sequential([
            keras.Input((None,), dtype="int32"), keras.layers.Embedding(100, 16),
            keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1),
        ])  # fmt: skip
        made.compile("sgd", "mse", jit_compile=True)
        return made

    def sequences():
        for length in lengths:
            for _ in range(32):
                yield [1] * length, 1.0

    signature = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.float32))
    ds = tf.data.Dataset.from_generator(sequences, output_signature=signature)
    before = fit(tmp_path / "before", model(), ds.padded_batch(32, drop_remainder=True), epochs=2)
    span = only(before, "recompilation")
    assert span["evidence"]["compilations"] >= 30
    names = apply(span["advice"]["code"], ds=ds.padded_batch(32, drop_remainder=True))
    after = fit(tmp_path / "after", model(), names["ds"], epochs=2)
    assert_gone(after, "recompilation")
    promised = before["wall_s"] / (before["wall_s"] - span["saves_s"])
    got = before["wall_s"] / after["wall_s"]
    print(f"promised {promised:.2f}, got {got:.2f}")
    # How long compiling takes, and making the longer inputs, is the machine's: no 20 % here.
    assert got > 1 + 0.5 * (promised - 1)
    assert claims(after, "recompilation") == []


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
    promised = before["wall_s"] / (before["wall_s"] - span["saves_s"])
    got = before["wall_s"] / (after["wall_s"] + model.SECONDS)
    assert got == pytest.approx(promised, rel=0.2), f"promised {promised:.2f}, got {got:.2f}"
