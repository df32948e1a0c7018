"""Printed code has the program's own names, found once as the fit or the loop begins."""

import functools
import importlib
import json
from types import SimpleNamespace

import pytest

keras = pytest.importorskip("keras")

import numpy as np  # noqa: E402
from advised_runs import COMPUTING, DATALOADER, LOOP, PYDATASET, found, phases, waits  # noqa: E402

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings  # noqa: E402
from gpu_util_callback.steps.callback_list import describe_callbacks  # noqa: E402
from gpu_util_callback.steps.frames import names_of  # noqa: E402

ALL = {"loop": "custom"}


def facts_of(folder) -> dict:
    [recording] = read_recordings(folder)
    return recording.facts["fit"]


class Images(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.ones((4, 8), "float32"), np.ones((4, 1), "float32")


@functools.cache
def compiled():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_fit_finds_the_names_of_what_it_is_given(tmp_path):
    train_images, val_images = Images(), Images()
    classifier = compiled()
    ours = GpuUtilCallback(tmp_path, trace="off", report=False)
    classifier.fit(train_images, validation_data=val_images, callbacks=[ours], verbose=0)
    names = {"input": "train_images", "validation": "val_images", "model": "classifier"}
    assert facts_of(tmp_path)["variables"] == names


def test_arrays_have_names_too(tmp_path):
    model, x_train, labels = compiled(), np.ones((16, 8), "float32"), np.ones((16, 1), "float32")
    ours = GpuUtilCallback(tmp_path, trace="off", report=False)
    model.fit(x_train, labels, callbacks=[ours], verbose=0)
    assert facts_of(tmp_path)["variables"] == {"input": "x_train", "y": "labels", "model": "model"}


def test_attributes_of_a_trainer_are_names(tmp_path):
    class Trainer:
        def __init__(self):
            self.net, self.images = compiled(), Images()

        def run(self):
            ours = GpuUtilCallback(tmp_path, trace="off", report=False)
            self.net.fit(self.images, callbacks=[ours], verbose=0)

    Trainer().run()
    assert facts_of(tmp_path)["variables"] == {"input": "self.images", "model": "self.net"}


def test_what_has_no_name_has_none(tmp_path):
    ours = GpuUtilCallback(tmp_path, trace="off", report=False)
    compiled().fit(Images(), callbacks=[ours], verbose=0)
    assert facts_of(tmp_path)["variables"] == {}


def test_redacted_recordings_hold_no_names(tmp_path):
    secret_project, secret_model = Images(), compiled()
    ours = GpuUtilCallback(tmp_path / "fit", trace="off", report=False, redact=True)
    secret_model.fit(secret_project, callbacks=[ours], verbose=0)
    with GpuUtilMonitor(tmp_path / "loop", redact=True, report=False, trace="off") as monitor:
        for _ in monitor.batches(secret_project):
            break
    for name in ("fit", "loop"):
        [recording] = read_recordings(tmp_path / name)
        assert "secret" not in json.dumps(recording.facts, default=str)


def test_a_loop_finds_the_names_of_what_it_iterates_over(tmp_path):
    batches = [np.ones(4)] * 4
    with GpuUtilMonitor(tmp_path, report=False, trace="off") as watch:
        for _ in range(2):
            for _ in watch.batches(batches):
                pass
            with watch.phase("validation"):
                held_out = [np.ones(4)]
                for _ in watch.batches(held_out):
                    pass
    assert facts_of(tmp_path)["variables"] == {"input": "batches", "monitor": "watch", "validation": "held_out"}


def test_a_loader_behind_a_wrapper_has_its_name_and_its_datasets(tmp_path):
    torch = pytest.importorskip("torch")
    train_set = torch.utils.data.TensorDataset(torch.ones(8, 2))
    train_loader = torch.utils.data.DataLoader(train_set, batch_size=4)

    class Bar:
        def __init__(self, iterable):
            self.iterable = iterable

        def __iter__(self):
            return iter(self.iterable)

    with GpuUtilMonitor(tmp_path, framework="torch", report=False, trace="off") as monitor:
        for _ in monitor.batches(Bar(train_loader)):
            pass
    names = facts_of(tmp_path)["variables"]
    assert (names["input"], names["input_source"]) == ("train_loader", "train_set")


def test_the_name_given_last_is_the_one():
    import sys

    made = []
    data = made
    frame = sys._getframe()
    assert names_of(frame, {"input": data}) == {"input": "data"}
    assert names_of(frame, {"input": object()}) == {} == names_of(None, {"input": data})


def code_of(run, host=None) -> str:
    [cause] = {one["cause"] for one in run.diagnose()["spans"] + run.diagnose()["findings"]}
    return found(run, cause, host)["advice"]["code"]


LOADER = {"input": "train_loader", "input_source": "train_set"}


@pytest.mark.parametrize(
    "run, line",
    [
        (
            waits(framework={"name": "torch", "backend": "torch"}, variables=LOADER, gpus=[], **DATALOADER, **LOOP),
            "train_loader = DataLoader(train_set, ..., num_workers=4, persistent_workers=True)",
        ),
        (waits(variables={"input": "photos"}, **PYDATASET), "photos.workers = 5"),
        (waits(variables={"input": "self.photos"}, **PYDATASET), "self.photos.workers = 5"),
        (
            waits(("filter(keep)", "Filter", 40.0, 1.0, ""), epochs=5, variables={"input": "train"}),
            "train = train.cache()",
        ),
        (
            phases("validation", "validation", 1, variables={"monitor": "watch"}, **LOOP),
            '    with watch.phase("validation"): ...',
        ),
        (phases("checkpoint", "ModelCheckpoint.on_epoch_end", variables={"model": "net"}), 'net.save("model.keras")'),
    ],
)
def test_printed_lines_have_the_programs_names(run, line):
    assert any(one.startswith(line) for one in code_of(run).splitlines()), code_of(run)


def test_names_in_a_class_body_stay_arguments():
    jax = {"name": "jax", "backend": "jax"}
    code = code_of(waits(framework=jax, variables={"input": "self.photos"}, **PYDATASET), COMPUTING)
    assert "self.photos = Spawned(self.photos, workers=" in code
    compile(code, "<advice>", "exec")


@pytest.mark.parametrize("name", ["x; import os", "", "a.b.c", "<b>"])
def test_a_manifest_cannot_put_other_things_into_code(name):
    assert code_of(waits(variables={"input": name}, **PYDATASET)).startswith("dataset.workers")


def test_callbacks_say_how_often_they_work():
    class Prints(keras.callbacks.Callback):
        def __init__(self, path, print_every=1, depth=3, *, epoch_freq=2, every="batch", period=None, interval=0):
            super().__init__()
            self._print_every = print_every

        def on_epoch_end(self, number, logs=None):
            pass

    stopping = keras.callbacks.EarlyStopping(monitor="val_loss")
    plain = keras.callbacks.TerminateOnNaN()
    told = describe_callbacks([Prints("a", 5), stopping, plain, SimpleNamespace()])
    line = Prints.on_epoch_end.__code__.co_firstlineno
    assert told == {
        "Prints": {
            "every": {"print_every": 5, "epoch_freq": 2, "every": 1},
            "names": {"on_epoch_end": "number"},
            "places": {"on_epoch_end": f"Prints.on_epoch_end (test_own_names.py, line {line})"},
        },
        "EarlyStopping": {"monitor": "val_loss"},
    }


def test_a_callback_of_an_installed_library_is_said_to_be_one(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "theirs"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import keras\nclass Logs(keras.callbacks.Callback): ...\n")
    monkeypatch.syspath_prepend(folder.parent)
    library = importlib.import_module("theirs")
    assert describe_callbacks([library.Logs()]) == {"Logs": {"library": "theirs"}}
