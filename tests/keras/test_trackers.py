"""Real experiment trackers get the epoch's numbers through Keras' own `logs`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from gpu_util_callback import GpuUtilCallback

pytestmark = pytest.mark.filterwarnings("ignore")
X = np.ones((64, 8), np.float32)
NAMES = ("input_wait_pct", "samples_per_s")


def model():
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def ours(folder) -> GpuUtilCallback:
    return GpuUtilCallback(str(folder), report=False, logs=True)


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    recorder = ours(tmp_path / "run")
    with mlflow.start_run() as run:
        model().fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[mlflow.keras.MlflowCallback(), recorder])
        numbers = {k: v for k, v in recorder.summary().items() if isinstance(v, int | float)}
        mlflow.log_metrics({f"gpu_util/{name}": value for name, value in numbers.items()})
    client = MlflowClient(uri)
    for name in NAMES:
        assert len(client.get_metric_history(run.info.run_id, name)) == 2
    assert client.get_run(run.info.run_id).data.metrics["gpu_util/steps"] == 16


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    from wandb.integration.keras import WandbMetricsLogger

    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    run = wandb.init(mode="offline", dir=str(tmp_path), project="p")
    recorder = ours(tmp_path / "run")
    model().fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[WandbMetricsLogger(), recorder])
    run.summary.update(recorder.summary())
    logged = dict(run.summary)
    run.finish()
    assert all(logged[f"epoch/{name}"] > 0 for name in NAMES)
    assert logged["steps"] == 16 and isinstance(logged["verdict"], str)
    assert list(tmp_path.rglob("*.wandb"))


def test_keras_tuner(tmp_path):
    tuner = pytest.importorskip("keras_tuner", reason="pip install keras-tuner")

    def build(choice):
        choice.Choice("units", [1, 2])
        return model()

    search = tuner.GridSearch(
        build,
        objective=tuner.Objective("samples_per_s", "max"),
        max_trials=2,
        directory=str(tmp_path / "tuner"),
        project_name="p",
    )
    search.search(X, X[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[ours(tmp_path / "run")])
    trials = search.oracle.get_best_trials(2)
    assert len(trials) == 2
    assert trials[0].score >= trials[1].score > 0
    assert all(trial.metrics.exists("input_wait_pct") for trial in trials)
