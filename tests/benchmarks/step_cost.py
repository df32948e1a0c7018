"""What recording adds to a training step on TensorFlow, and to the disk (see `alternation`)."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from alternation import (
    BATCH,
    BUDGET_PYTHON_US,
    BUDGET_RATIO,
    BUDGET_US,
    STRETCH,
    Cost,
    Edge,
    dense_model,
    measure,
    model_of,
    together,
)
from bare_fit import python_us

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recording import Clock, RecordingWriter

BUDGET_BYTES = 32


def dataset_of(width: int, dynamic: bool = False) -> tf.data.Dataset:
    """The same batch for ever; `dynamic`: of unknown size, as without `drop_remainder`."""
    dataset = tf.data.Dataset.from_tensors((tf.zeros((BATCH, width)), tf.zeros((BATCH, 1))))
    if dynamic:
        shapes = ((None, width), (None, 1))
        dataset = dataset.map(
            lambda *batch: tuple(
                tf.ensure_shape(tf.py_function(lambda t: t, [tensor], tensor.dtype), shape)
                for tensor, shape in zip(batch, shapes, strict=True)
            )
        ).cache()
    return dataset.repeat()


def bytes_per_step(log_dirs: list[str]) -> float:
    """What the `steps` table takes on disk, from the rows of real fits, one after the other."""
    found = [next(iter(read_recordings(log_dir))).steps for log_dir in log_dirs]
    folder = tempfile.mkdtemp()
    writer = RecordingWriter(folder, {}, clock=Clock(), flush_s=2)
    count = 0
    for rows in found:  # a flush every 2 s
        more = {name: column.copy() for name, column in rows.items()}
        more["step"] += count
        count += len(more["step"])
        writer.append("steps", more)
        writer.flush()
    writer.close("ended")
    return sum(path.stat().st_size for path in Path(writer.path).glob("segment-*")) / count


def main(pairs: int = 150, rounds: int = 3) -> None:
    print(Cost.HEADER)
    logs = tempfile.mkdtemp()
    for step_ms in (1, 5):
        _, width = model_of(step_ms, dataset_of, jit_compile=False)
        costs: dict[str, list[Cost]] = {}
        for turn in range(rounds):  # each kind in its turn: the machine's mood is all kinds' mood
            ours = f"{logs}/{step_ms}-{turn}"
            kinds = (
                ("GpuUtilCallback", GpuUtilCallback(ours, report=False), False),
                ("  with dynamic shapes", GpuUtilCallback(f"{ours}-dynamic", report=False), True),
                ("callback that does nothing", keras.callbacks.Callback(), False),
                ('TensorBoard(update_freq="batch")', keras.callbacks.TensorBoard(
                    f"{ours}-tb", update_freq="batch", profile_batch=0, write_graph=False), False),
            )  # fmt: skip
            for name, callback, dynamic in kinds:
                model = dense_model(width, jit_compile=False)
                data = dataset_of(width, dynamic)
                cost = measure(name, callback, model, data, pairs=pairs // rounds)
                costs.setdefault(name, []).append(cost)
        for name, found in costs.items():
            cost = together(found)
            if name == "GpuUtilCallback":
                print(f"steps of {cost.step_us / 1e3:.1f} ms, {pairs} pairs of {STRETCH} steps")
            each = " ".join(f"{statistics.median(one.whole):.0f}" for one in found)
            print(f"{cost.row()}   (fit by fit {each})", flush=True)
    own = python_us(lambda: GpuUtilCallback(tempfile.mkdtemp(), report=False), dataset_of, Edge)
    print(f"Python on the training thread, a fit without work: {own:.1f} µs a step")
    print(f"budget: whole ≤ {BUDGET_US} µs, of it Python ≤ {BUDGET_PYTHON_US} µs, "
          f"ratio ≤ {BUDGET_RATIO} at 5 ms")  # fmt: skip
    recording = next(iter(read_recordings(f"{logs}/5-0")))
    overhead = recording.facts["overhead"]
    print(f"said of itself: {overhead['callback_us_per_step']} µs Python a step, recorder's thread "
          f"{overhead['recorder_cpu_pct']} % of a core")  # fmt: skip
    on_disk = bytes_per_step([f"{logs}/1-{turn}" for turn in range(rounds)])
    print(f"steps table on disk: {on_disk:.1f} bytes a step (budget {BUDGET_BYTES})")


if __name__ == "__main__":
    main()
