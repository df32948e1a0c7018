"""Ray Train on a local cluster: two workers, each under GpuUtilMonitor or GpuUtilCallback.

Arguments: a folder, and which trainers ("torch", "tensorflow", "jax", "keras"), one after another.
"""

from __future__ import annotations

import os
import sys

STEPS, BATCH, WIDTH = 120, 8, 16


def batches(rank: int):
    """The last worker's input is slow, and no two batches equally so."""
    import time

    import numpy as np

    random = np.random.default_rng(rank)
    for _ in range(STEPS):
        time.sleep(random.uniform(0.02, 0.05) if rank == 1 else 0)
        yield np.ones((BATCH, WIDTH), np.float32)


def torch_loop(config: dict) -> None:
    import torch
    from ray import train
    from ray.train.torch import prepare_model

    from gpu_util_callback import GpuUtilMonitor

    rank = train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with GpuUtilMonitor(config["log_dir"], report=False) as monitor:
        for x in monitor.batches(batches(rank)):
            optimizer.zero_grad()
            (model(torch.from_numpy(x)) ** 2).mean().backward()
            optimizer.step()
    train.report({})


def tensorflow_loop(config: dict) -> None:
    import tensorflow as tf
    from ray import train

    from gpu_util_callback import GpuUtilMonitor

    rank = train.get_context().get_world_rank()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.ones((WIDTH, 1)))
    signature = tf.TensorSpec((BATCH, WIDTH), tf.float32)
    make = lambda _: tf.data.Dataset.from_generator(  # noqa: E731
        lambda: batches(rank), output_signature=signature
    )
    dataset = strategy.distribute_datasets_from_function(make)

    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(1e-3 * gradient)

    @tf.function
    def train_step(x):
        strategy.run(replica_step, args=(x,))

    with GpuUtilMonitor(config["log_dir"], report=False) as monitor:
        for x in monitor.batches(dataset):
            train_step(x)
    train.report({})


def jax_loop(config: dict) -> None:
    """Ray connects JAX processes on GPUs and TPUs only: here each computes for itself."""
    import jax
    import jax.numpy as jnp
    from ray import train

    from gpu_util_callback import GpuUtilMonitor

    rank = train.get_context().get_world_rank()
    step = jax.jit(lambda w, x: w - 1e-3 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))
    weights = jnp.ones((WIDTH, 1))
    with GpuUtilMonitor(config["log_dir"], report=False) as monitor:
        for x in monitor.batches(batches(rank)):
            weights = step(weights, x)
    train.report({})


def keras_loop(config: dict) -> None:
    """`fit` on the torch backend, each worker for itself."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from ray import train

    from gpu_util_callback import GpuUtilCallback

    rank = train.get_context().get_world_rank()
    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = ((x, x[:, :1]) for x in batches(rank))
    model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=[
        GpuUtilCallback(config["log_dir"], report=False),
    ])  # fmt: skip
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
