"""Advice executed, what stops training: callbacks, checkpoints, validation, compilation."""

import sys
import time
from types import SimpleNamespace

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402
from advised import Given, apply, assert_compiled_less, assert_faster, assert_gone, assert_kept, only, paced  # noqa: E402
from timed_fit import Timed, batches, fit, labelled, pause, slowly  # noqa: E402

from gpu_util_callback import GpuUtilMonitor, read_recordings  # noqa: E402
from gpu_util_callback.diagnosis import run_report  # noqa: E402

pytestmark = [
    pytest.mark.timed,
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.real_clock("a neighbour may begin or end between the two fits that are compared", reruns=3),
]


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

    before = fit(tmp_path / "before", Timed(40), labelled(12), epochs=16, callbacks=[Plots()])
    span = only(before, "host_stall")
    Plots.code = span["advice"]["code"]
    after = fit(tmp_path / "after", Timed(40), labelled(12), epochs=16, callbacks=[Plots()])
    assert_kept(before, after, "host_stall")


@pytest.mark.slow
def test_a_callback_of_a_short_training_works_once_at_its_end(tmp_path):
    class Plots(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.3)

    before = fit(tmp_path / "before", Timed(40), labelled(12), epochs=8, callbacks=[Plots()])
    code = only(before, "host_stall")["advice"]["code"]
    names = apply(code.replace("...", "_work(epoch, logs)"), _work=lambda *_: time.sleep(0.3))
    hooks = {name: hook for name, hook in names.items() if name.startswith("on_")}
    once = type("Once", (keras.callbacks.Callback,), hooks)
    after = fit(tmp_path / "after", Timed(40), labelled(12), epochs=8, callbacks=[once()])
    assert_kept(before, after, "host_stall")
    assert after["time_s"]["callbacks"] > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("every, seconds", [(5, 0.2), ("epoch", 0.2)])
@pytest.mark.parametrize("saver", ["ModelCheckpoint", "BackupAndRestore"])
def test_a_model_is_saved_less_often(tmp_path, saver, every, seconds, monkeypatch):
    monkeypatch.setattr(Saving, "SECONDS", seconds)
    kind = getattr(keras.callbacks, saver)
    where = str(tmp_path / ("backup" if saver == "BackupAndRestore" else "model.weights.h5"))
    more = {"save_weights_only": True} if saver == "ModelCheckpoint" else {}
    if saver == "BackupAndRestore":  # it writes more than the model
        monkeypatch.setattr(kind, "_save_model", lambda self, *a, **k: time.sleep(seconds))
    given = Given(kind, where, save_freq=every, **more)
    names = {"keras": SimpleNamespace(callbacks=SimpleNamespace(**{saver: given}))}
    steps = {"epochs": 10 if every == 5 else 24}
    before = fit(tmp_path / "before", Saving(40), labelled(15), callbacks=[given(...)], **steps)
    span = only(before, "host_stall")
    apply(span["advice"]["code"], **names)
    after = fit(tmp_path / "after", Saving(40), labelled(15), callbacks=[given.result], **steps)
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
@pytest.mark.parametrize(
    "epochs, steps, batches_each, setting",
    [
        (16, 24, 8, "validation_freq"),
        (4, 30, 40, "validation_steps"),
        (4, 12, 8, "validation_steps"),  # once, at the end, would be too few
    ],
)
def test_validation_is_made_less(tmp_path, epochs, steps, batches_each, setting):
    kwargs = {"epochs": epochs, "validation_data": labelled(batches_each)}
    given = Given(fit, tmp_path / "before", Evaluated(40), labelled(steps), **kwargs)
    before = given(...)
    span = only(before, "host_stall")
    assert setting in span["advice"]["code"]
    given.arguments = (tmp_path / "after", Evaluated(40), labelled(steps))
    apply(span["advice"]["code"], model=SimpleNamespace(fit=given))
    assert_kept(before, given.result, "host_stall")


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


@pytest.mark.slow
def test_validation_data_is_kept(tmp_path):
    val_ds = batches(12).map(slowly(80))
    kwargs = {"epochs": 8}
    before = fit(tmp_path / "before", Timed(40), labelled(16), validation_data=val_ds, **kwargs)
    span = only(before, "host_stall")
    assert span["saves_s"] < 0.875 * span["lost_s"], "the first validation still waits"
    names = apply(span["advice"]["code"], val_ds=val_ds)
    after = fit(tmp_path / "after", Timed(40), labelled(16), validation_data=names["val_ds"], **kwargs)
    assert_kept(before, after, "host_stall")


class Slow(keras.utils.PyDataset):
    """Batches each of which waits, as reading from a slow disk does."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.12)
        return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")


@pytest.mark.slow
def test_validation_data_gets_workers(tmp_path):
    data, kwargs = Slow(), {"epochs": 3}
    before = fit(tmp_path / "before", Timed(60), labelled(16), validation_data=data, **kwargs)
    names = apply(only(before, "host_stall")["advice"]["code"], val_dataset=Slow())
    data = names["val_dataset"]
    after = fit(tmp_path / "after", Timed(60), labelled(16), validation_data=data, **kwargs)
    saves = only(before, "host_stall")["saves_s"]
    assert_faster(paced(before, "host_stall"), paced(after, "host_stall"), saves)


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


def sequences(lengths: list[int]) -> tf.data.Dataset:
    """32 of each length, without Python: while it traces, Python makes no input."""

    def some(length):
        one = tf.ones([length], tf.int32), 1.0
        return tf.data.Dataset.from_tensors(one).repeat(32)

    return tf.data.Dataset.from_tensor_slices(lengths).flat_map(some)


@pytest.mark.slow
def test_new_shapes_are_padded_to_one(tmp_path):
    def train(name, ds, **kwargs):
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                keras.layers.Embedding(100, 16),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse", jit_compile=True)
        # Time that no advice changes: a training that did nothing but compile would be faster by a
        # factor that hangs on the few steps left.
        rest = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(2))
        return fit(tmp_path / name, model, ds, callbacks=[rest], **kwargs)

    train("first", sequences([16] * 3).padded_batch(32))  # XLA begins to work
    lengths = [32 + 24 * (i % 20) for i in range(40)]
    ds = sequences(lengths).padded_batch(32, drop_remainder=True)
    before = train("before", ds, epochs=2)
    span = only(before, "recompilation")
    assert span["evidence"]["compilations"] >= 16
    names = apply(span["advice"]["code"], ds=ds)
    after = train("after", names["ds"], epochs=2)
    assert_compiled_less(before, after, left=1)
    [recording] = read_recordings(tmp_path / "after")
    assert list(recording.phases["kind"]).count("compilation") == 1


@pytest.mark.slow
def test_batches_of_any_size_become_batches_of_one(tmp_path):
    def train(name, ds, **kwargs):
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
        rest = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(2))
        return fit(tmp_path / name, model, ds, callbacks=[rest], **kwargs)

    def sized(sizes):
        made = tf.data.Dataset.from_tensor_slices(sizes)
        return made.map(lambda size: (tf.ones([size, 16]), tf.ones([size, 1])))

    train("first", sized([4] * 3))  # XLA begins to work
    ds = sized([8 + i % 20 for i in range(40)])
    before = train("before", ds, epochs=2)
    span = only(before, "recompilation")
    assert "unbatch().batch(batch_size, drop_remainder=True)" in span["advice"]["code"]
    names = apply(span["advice"]["code"], ds=ds, batch_size=16)
    after = train("after", names["ds"], epochs=2)
    assert_compiled_less(before, after, left=1)


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
