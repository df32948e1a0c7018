"""Keras fits over batches that come late by known amounts, on any backend."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from injected import BATCH, WIDTH, Truth

from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.recording import Recording


class Wanted(keras.callbacks.Callback):
    """Stamps when the loop reaches a batch, just before the train (or test) function."""

    def __init__(self, truth: Truth, validation: Truth | None = None):
        super().__init__()
        self.truth = truth
        self.validation = validation

    def on_train_batch_begin(self, batch, logs=None):
        self._stamp(self.truth, batch)

    def on_test_batch_begin(self, batch, logs=None):
        self._stamp(self.validation, batch)

    def _stamp(self, truth: Truth | None, batch: int) -> None:
        if truth is not None and batch < len(truth):  # Keras begins a batch more where it knows no number
            truth.wanted[batch] = time.perf_counter_ns()


class Made(keras.utils.PyDataset):
    """Batches of a truth as a PyDataset."""

    def __init__(self, truth: Truth, **kwargs):
        super().__init__(**kwargs)
        self.truth = truth

    def __len__(self):
        return len(self.truth)

    def __getitem__(self, index):
        return self.truth.make(index)


def given(kind: str, truth: Truth, **workers: Any) -> dict:
    """Return `fit`'s arguments for a generator, a PyDataset or arrays over the truth's batches."""
    n = len(truth)
    if kind == "generator":
        return {"x": truth.batches(), "steps_per_epoch": n}
    if kind.startswith("PyDataset"):
        return {"x": Made(truth, **workers), "shuffle": False}
    x = np.full((n * BATCH, WIDTH), 0.1, np.float32)
    return {"x": x, "y": np.zeros((n * BATCH, 1), np.float32), "batch_size": BATCH}


def recorded_fit(model: keras.Model, log_dir: Path, *, callbacks=(), after=(), **arguments: Any) -> Recording:
    """Fit with a GpuUtilCallback between `callbacks` and `after`; the one recording it leaves."""
    before = {r.id for r in read_recordings(log_dir)} if log_dir.exists() else set()
    arguments.setdefault("verbose", 0)
    ours = GpuUtilCallback(str(log_dir), report=False)
    model.fit(callbacks=[*callbacks, ours, *after], **arguments)
    (recording,) = [r for r in read_recordings(log_dir) if r.id not in before]
    return recording
