"""The manifest says where in a training a fit begins, who trains, and for which scheduler's job."""

import json
import socket

import keras
import numpy as np
import pytest
from fit_truth import BATCH, WIDTH, compiled, traced

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.job import scheduler_facts, user_name

X = np.zeros((BATCH * 5, WIDTH), np.float32)


def fit(model, log_dir, **options):
    redact = options.pop("redact", False)
    callback = GpuUtilCallback(str(log_dir), redact=redact, report=False)
    model.fit(X, X[:, :1], batch_size=BATCH, verbose=0, callbacks=[callback], **options)
    [recording] = read_recordings(log_dir)
    return recording.facts


def test_the_epoch_and_the_iteration_that_a_fit_begins_at(tmp_path):
    model = compiled()
    # Its `iterations` are updates, of five batches each: two after the first fit.
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=5), "mse")
    first = fit(model, tmp_path / "first", epochs=2)["fit"]
    second = fit(model, tmp_path / "second", epochs=5, initial_epoch=4)["fit"]
    assert (first["first_epoch"], first["first_iteration"]) == (0, 0)
    assert (second["first_epoch"], second["first_iteration"]) == (4, 10)


def test_a_fit_restored_by_keras_begins_where_its_backup_was_made(tmp_path):
    def restored(log_dir, epochs):
        model = compiled()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "kept", delete_checkpoint=False)
        callback = GpuUtilCallback(str(log_dir), report=False)
        # Ours comes first: the backup is restored after our own beginning.
        model.fit(X, X[:, :1], BATCH, epochs, verbose=0, callbacks=[callback, backup])
        [recording] = read_recordings(log_dir)
        return recording

    assert restored(tmp_path / "a", 3).facts["fit"]["first_epoch"] == 0
    again = restored(tmp_path / "b", 5)
    fit = again.facts["fit"]
    assert (fit["first_epoch"], fit["first_iteration"]) == (3, 15)
    assert again.phases["name"][again.phases["kind"] == "epoch"].tolist() == ["epoch 4", "epoch 5"]
    assert again.steps["step"].tolist() == list(range(10))


def test_the_user_and_the_job_are_written_and_kept_out_where_names_are(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    open_facts = fit(traced(), tmp_path / "open", epochs=1)
    hidden = fit(traced(), tmp_path / "hidden", epochs=1, redact=True)
    assert open_facts["user"] == "ada"
    assert open_facts["scheduler"] == {"name": "SLURM", "job": "4711", "restarts": 0}
    assert "user" not in hidden and "4711" not in json.dumps(hidden["scheduler"])
    assert hidden["scheduler"] == scheduler_facts(redact=True)  # stable: restarts are recognised
    assert open_facts["host"] == socket.gethostname() not in hidden["host"]
    assert all(socket.gethostname() not in path.name for path in (tmp_path / "hidden").rglob("*"))


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
RAY = {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"job_submission_id": "raysubmit_A1"}}'}


@pytest.mark.parametrize(
    "environ, host, known",
    [
        ({}, "node-7", None),
        ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}, "node-7", ("SLURM", "12", 3)),
        (POD, "train-bert-x7k2p", ("Kubernetes", "team/train-bert", None)),
        (POD, "train-bert-7d9c5b6f8c-x7k2p", ("Kubernetes", "team/train-bert", None)),
        (POD, "bert-worker-0", ("Kubernetes", "team/bert-worker-0", None)),  # keeps its own name
        (POD | RAY, "ray-worker-x7k2p", ("Ray", "raysubmit_A1", None)),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{"}, "node-7", None),
    ],
)
def test_the_scheduler_from_the_environment(tmp_path, environ, host, known):
    (tmp_path / "namespace").write_text("team\n")
    found = scheduler_facts(environ, host, str(tmp_path / "namespace"))
    assert (found and tuple(found.values())) == known


def test_a_user_without_a_name(monkeypatch):
    def unknown():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert user_name() is None
