"""Ray Train on a local cluster: two workers, each under GpuUtilMonitor or GpuUtilCallback.

Arguments: a folder, and which trainers ("torch", "tensorflow", "jax", "keras"), one after another.
"""

from __future__ import annotations

import os
import sys

STEPS = 120


def batches(rank: int):
    """The last worker's input is slow."""
    from loops import late_batches

    return late_batches(rank, STEPS, (0.02, 0.05) if rank == 1 else (0.0, 0.0))


def torch_loop(config: dict) -> None:
    import loops
    from ray import train
    from ray.train.torch import prepare_model

    rank = train.get_context().get_world_rank()
    loops.torch_loop(config["log_dir"], prepare_model, batches(rank))
    train.report({})


def tensorflow_loop(config: dict) -> None:
    import loops
    import tensorflow as tf
    from ray import train

    rank = train.get_context().get_world_rank()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    loops.tensorflow_loop(config["log_dir"], strategy, lambda: batches(rank))
    train.report({})


def jax_loop(config: dict) -> None:
    """Ray connects JAX processes on GPUs and TPUs only: here each computes for itself."""
    import loops
    from ray import train

    loops.jax_loop(config["log_dir"], batches(train.get_context().get_world_rank()))
    train.report({})


def keras_loop(config: dict) -> None:
    """`fit` on the torch backend, each worker for itself."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from loops import WIDTH
    from ray import train

    from gpu_util_callback import GpuUtilCallback

    rank = train.get_context().get_world_rank()
    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = ((x, x[:, :1]) for x in batches(rank))
    model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=[GpuUtilCallback(config["log_dir"], report=False)])
    train.report({})


def trainer(name: str):
    if name == "tensorflow":
        from ray.train.tensorflow import TensorflowTrainer

        return TensorflowTrainer
    if name == "jax":
        from ray.train.v2.jax import JaxTrainer

        return JaxTrainer
    from ray.train.torch import TorchTrainer

    return TorchTrainer


if __name__ == "__main__":
    import ray
    from injected import report
    from ray.train import RunConfig, ScalingConfig

    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import logdir_report

    folder, names = sys.argv[1], sys.argv[2:]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=bool(os.environ.get("RAY_TALK")))
    for name in names:
        log_dir = f"{folder}/logs-{name}"
        trainer(name)(
            globals()[f"{name}_loop"],
            train_loop_config={"log_dir": log_dir},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name=f"night-{name}", storage_path=f"{folder}/storage"),
        ).fit()
        recordings = sorted(read_recordings(log_dir), key=lambda one: one.facts["rank"])
        (session,) = logdir_report(recordings)["sessions"]
        keys = ("rank", "world_size", "job", "job_source", "trial", "trial_of")
        report(
            name,
            facts=[{key: one.facts.get(key) for key in keys} for one in recordings],
            steps=[len(one.steps["step"]) for one in recordings],
            status=[one.status for one in recordings],
            causes=[(found["cause"], found["ranks"]) for found in session["findings"]],
            clocks=session["clocks"],
        )
    ray.shutdown()
