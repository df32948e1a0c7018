"""Callbacks for trainers that are not Keras': Hugging Face's `Trainer` and Lightning's."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from types import FrameType
from typing import Any, Protocol

from gpu_util_callback.monitor import GpuUtilMonitor
from gpu_util_callback.steps.frames import FitWatch

__all__ = ["lightning_callback", "trainer_callback"]


def trainer_callback(log_dir: str = "logs", **settings: object) -> Any:
    """Return a callback that records the training of a Hugging Face `Trainer`.

    Args:
        log_dir: as for `GpuUtilMonitor`.
        **settings: as for `GpuUtilMonitor`.

    Example:

    ```python
    trainer = Trainer(model, args, train_dataset=dataset, callbacks=[trainer_callback("logs")])
    trainer.train()
    ```
    """
    return _make_callback("transformers", {"log_dir": log_dir, **settings})


def lightning_callback(log_dir: str = "logs", **settings: object) -> Any:
    """Return a callback that records `fit` of a Lightning `Trainer`.

    Args:
        log_dir: as for `GpuUtilMonitor`.
        **settings: as for `GpuUtilMonitor`.

    Example:

    ```python
    trainer = Trainer(max_epochs=10, callbacks=[lightning_callback("logs")])
    trainer.fit(model, loader)
    ```
    """
    new = "lightning" in sys.modules or "pytorch_lightning" not in sys.modules
    return _make_callback("lightning.pytorch" if new else "pytorch_lightning", {"log_dir": log_dir, **settings})


def _make_callback(library: str, settings: dict[str, object]) -> object:
    """Return a callback of this library's own class, which is imported here alone."""
    hooks = _HuggingFace if library == "transformers" else _Lightning
    base = getattr(import_module(library), "TrainerCallback" if hooks is _HuggingFace else "Callback")
    callback = type("GpuUtilTrainerCallback", (hooks, base), {})()
    callback._library, callback._settings = library, settings
    callback._new_monitor()  # raises where an argument cannot be used
    return callback


class TrainerHooks:
    """The steps of a trainer, as its callbacks report them, for a `GpuUtilMonitor`.

    A step's batch is fetched from the end of the last hook before it to its own first one: the
    callback has to be the last of the list for that.
    """

    _library: str
    _settings: dict[str, Any]
    _monitor: GpuUtilMonitor | None = None
    _requested_s = 0.0

    def __reduce__(self) -> tuple:
        """Return the callback without a training, for processes that a trainer starts."""
        return _make_callback, (self._library, self._settings)

    def _new_monitor(self) -> GpuUtilMonitor:
        return GpuUtilMonitor(**{"framework": "torch", **self._settings})

    def _begin(self, loader: object) -> None:
        self._finish()
        frame = self._training()
        self._monitor = monitor = self._new_monitor()
        monitor.begin_in(frame, FitWatch(frame))
        monitor._tell(monitor._describe, loader, False)

    def _training(self) -> FrameType:
        """Return the frame of the trainer's method that the program has called."""
        frame: FrameType | None = sys._getframe(2)
        training, library = sys._getframe(2), self._library.partition(".")[0]
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] == library:
                training = frame
            frame = frame.f_back
        return training

    def _finish(self, error: BaseException | None = None) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.__exit__(type(error) if error is not None else None, error, None)

    def _epoch(self, method: str) -> None:
        monitor = self._monitor
        if monitor is not None and monitor._loop is not None:
            monitor._tell(getattr(monitor._loop, method))
        self._request()

    def _request(self) -> None:
        """Note that the trainer may now ask for its next batch."""
        self._requested_s = time.perf_counter()

    def _step_begins(self) -> None:
        if self._monitor is not None:
            waited_s = time.perf_counter() - self._requested_s
            self._monitor.step(input_wait_s=waited_s).__enter__()

    def _step_ends(self) -> None:
        if self._monitor is not None:
            self._monitor.step().__exit__(None)
        self._request()

    def _phase_begins(self, name: str) -> None:
        if self._monitor is not None:
            self._monitor.phase(name).__enter__()

    def _phase_ends(self, name: str) -> None:
        if self._monitor is not None:
            self._monitor.phase(name).__exit__()
        self._request()


class _Control(Protocol):
    """The decisions of a Hugging Face `Trainer` for the end of a step."""

    should_evaluate: bool
    should_save: bool


class _HuggingFace(TrainerHooks):
    """Hooks of `transformers.TrainerCallback`."""

    _phase = ""  # under way

    def on_train_begin(self, *_: object, **arguments: object) -> None:
        self._begin(arguments.get("train_dataloader"))

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        self._epoch("batches_begin")

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._step_begins()

    def on_step_end(self, _args: object, _state: object, control: _Control, **_: object) -> None:
        self._step_ends()
        self._next_phase(control)

    def on_epoch_end(self, _args: object, _state: object, control: _Control, **_: object) -> None:
        self._epoch("batches_end")
        self._next_phase(control)

    def on_log(self, *_: object, **__: object) -> None:
        self._request()

    def on_evaluate(self, _args: object, _state: object, control: _Control, **_: object) -> None:
        self._next_phase(control)

    def on_save(self, _args: object, _state: object, control: _Control, **_: object) -> None:
        self._next_phase(control)

    def on_train_end(self, *_: object, **__: object) -> None:
        self._finish()

    def _next_phase(self, control: _Control) -> None:
        """End a phase, and begin the one that the trainer has announced."""
        if self._phase:
            self._phase_ends(self._phase)
        self._phase = "validation" if control.should_evaluate else ""
        if control.should_save and not self._phase:
            self._phase = "checkpoint"
        if self._phase:
            self._phase_begins(self._phase)
        self._request()


class _Trainer(Protocol):
    """A Lightning `Trainer`."""

    train_dataloader: object


class _Lightning(TrainerHooks):
    """Hooks of `lightning.pytorch.Callback`."""

    def on_train_start(self, trainer: _Trainer, *_: object) -> None:
        self._begin(trainer.train_dataloader)

    def on_train_epoch_start(self, *_: object) -> None:
        self._epoch("batches_begin")

    def on_train_batch_start(self, *_: object) -> None:
        self._step_begins()

    def on_train_batch_end(self, *_: object) -> None:
        self._step_ends()

    def on_validation_start(self, *_: object) -> None:
        self._phase_begins("validation")

    def on_validation_end(self, *_: object) -> None:
        self._phase_ends("validation")

    def on_train_epoch_end(self, *_: object) -> None:
        self._epoch("batches_end")

    def on_train_end(self, *_: object) -> None:
        self._finish()

    def on_exception(self, _trainer: object, _module: object, error: BaseException) -> None:
        self._finish(error)
