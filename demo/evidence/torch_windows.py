"""PyTorch's profiler over named steps of a Keras fit. Children only."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import torch

__all__ = ["TorchProfile"]


class TorchProfile(keras.callbacks.Callback):
    """Profiles step ranges counted from 0, and imports the traces when the fit is over.

    Each trace becomes a run beside the fit's, as `gpu_util_callback.trace_handler` does for users;
    exporting and reading it during the fit would hold the training up.
    """

    def __init__(self, windows: list[tuple[int, int]]) -> None:
        super().__init__()
        self.starts = dict(windows)
        self.stop_at, self.count = -1, 0
        self.running: Any = None
        self.behind: Any = None  # an event behind the step before the last
        self.done: list[tuple[int, Any]] = []
        with torch.profiler.profile():  # the first one loads CUPTI, which takes seconds
            torch.ones(1).sum()

    def on_train_batch_begin(self, batch, logs=None):
        if self.running is not None:
            self._keep_one()
            if self.count >= self.stop_at:
                _drain()
                self.running.stop()
                self.running = None
            else:
                self.running.step()  # the marker of a step
        elif self.count in self.starts:
            _drain()  # what was launched before is never traced
            self.behind = None
            self.stop_at = self.starts[self.count]
            # With a schedule, of whatever kind, it marks the steps.
            with warnings.catch_warnings():  # no warm-up is wanted: CUPTI is loaded by now
                warnings.simplefilter("ignore")
                always = torch.profiler.schedule(wait=0, warmup=0, active=1 << 30)
            self.running = torch.profiler.profile(schedule=always)
            self.running.start()
            self.done.append((self.count, self.running))
        self.count += 1

    def _keep_one(self) -> None:
        """Let the host be one step ahead of the GPU: a marker then says something of its step."""
        if torch.cuda.is_available():
            behind, self.behind = self.behind, torch.cuda.Event()
            self.behind.record()
            if behind is not None:
                behind.synchronize()

    def write(self, log_dir: str) -> None:
        """Import what was profiled into `<log_dir>/torch-profiler-<first step>`."""
        from gpu_util_callback import trace_handler

        for first, profiler in self.done:
            trace_handler(f"{log_dir}/torch-profiler-{first}")(profiler)


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
