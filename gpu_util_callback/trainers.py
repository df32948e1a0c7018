"""Callbacks for trainers that are not Keras': Hugging Face's `Trainer` and Lightning's."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

from gpu_util_callback.monitor import GpuUtilMonitor
from gpu_util_callback.recorder.messages import note
from gpu_util_callback.steps.callback_list import describe_callbacks
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


_Report = Callable[[Any], None]


class _Reported:
    """A method of a library's object that reports its calls, too, with their first argument.

    Replaces the method on the object until `end`.

    Args:
        owner, name: of the method.
        before, after: called with that argument before and after the method; None = nothing.
    """

    def __init__(self, owner: object, name: str, before: _Report | None = None, after: _Report | None = None):
        self._owner, self._name = owner, name
        # the object's own, set by another callback perhaps; None = the class's
        self._own_attribute = vars(owner).get(name)
        self._method = getattr(owner, name)
        self._reports: tuple[_Report | None, _Report | None] = before, after
        setattr(owner, name, self)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self._send(0, *args, *kwargs.values())
        try:
            return self._method(*args, **kwargs)
        finally:
            self._send(1, *args, *kwargs.values())

    def _send(self, after: int, *given: Any) -> None:
        """Send a call to the report before (0) or after (1) it. An error of ours ends the reports."""
        report = self._reports[after]
        if report is not None:
            try:
                report(given[0])
            except Exception as error:
                self._reports = None, None
                note(f"A trainer's calls are not timed ({type(error).__name__}: {error}); training continues")

    def end(self) -> None:
        """Report no more; give the method back where nobody has replaced it since."""
        self._reports = None, None
        if vars(self._owner).get(self._name) is self:
            if self._own_attribute is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._own_attribute)


class TrainerHooks:
    """The steps of a trainer, as its callbacks report them, for a `GpuUtilMonitor`.

    Attributes:
        _library: module of the trainer.
        _settings: the user's arguments for the monitor.
        _monitor: of the training under way; None = none.
        _request_s: when the trainer could ask for its next batch, `time.perf_counter`.
    """

    _library: str
    _settings: dict[str, Any]
    _monitor: GpuUtilMonitor | None = None
    _request_s = 0.0
    _replaced_methods: tuple[_Reported, ...] = ()
    _look_at: Callable[[object], Callable | None] | None = None  # the next batch

    def __reduce__(self) -> tuple:
        """Return the callback without a training, for processes that a trainer starts."""
        return _make_callback, (self._library, self._settings)

    def _new_monitor(self) -> GpuUtilMonitor:
        return GpuUtilMonitor(**{"framework": "torch", **self._settings})

    def _begin(self, loader: object, accumulates: object, callbacks: Iterable[object]) -> None:
        """Begin to record a training; end one that is still recorded.

        Args:
            loader: that makes the batches.
            accumulates: the number of batches whose gradients one update of the weights adds up.
            callbacks: all of the trainer.
        """
        # Still recorded: an error ended it, as of auto_find_batch_size, which tries again with a smaller batch.
        self._end_recording(RuntimeError("the trainer begins again"))
        frame = self._training_frame()
        self._monitor = monitor = self._new_monitor()
        monitor.begin_in(frame, FitWatch(frame))
        monitor._tell(monitor._describe, loader, False)
        recorder = monitor._recorder
        if recorder is None:
            return
        self._look_at = monitor._adapter.first_batch.note if monitor._adapter is not None else None
        name, batches = "transformers" if self._library == "transformers" else "lightning", recorder.facts["fit"]
        facts: dict[str, Any] = {"trainer": name}
        with recorder.guarded("facts about the callbacks"):
            facts["callbacks"] = describe_callbacks(callbacks)
        if isinstance(accumulates, int) and accumulates > 0:
            facts["gradient_accumulation_steps"] = accumulates
            if name == "transformers" and batches.get("steps_per_epoch"):  # its step is an update
                facts["steps_per_epoch"] = math.ceil(batches["steps_per_epoch"] / accumulates)
        recorder.facts["fit"] = {**recorder.facts["fit"], **facts}  # at once: the recorder's thread adds its own

    def _training_frame(self) -> FrameType:
        """Return the frame of the trainer's method that the program has called: the library's outermost one."""
        frame: FrameType | None = sys._getframe(2)
        training, library = sys._getframe(2), self._library.partition(".")[0]
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] == library:
                training = frame
            frame = frame.f_back
        return training

    def on_train_end(self, *_: object, **__: object) -> None:
        self._end_recording()

    def _end_recording(self, error: BaseException | None = None) -> None:
        """Take our wrappers out of the trainer and end the recording, by `error` if one is given."""
        reported, self._replaced_methods = self._replaced_methods, ()
        for method in reported:
            method.end()
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.__exit__(type(error) if error is not None else None, error, None)

    def _report_calls(self, make: Callable[[], Iterator[_Reported]]) -> None:
        """Have methods of the library's objects report their calls until the training ends."""
        try:
            for method in make():
                self._replaced_methods += (method,)
        except Exception as error:
            note(f"A trainer's calls are not timed ({type(error).__name__}: {error}); training continues")

    def _call_loop(self, method: str, *args: object) -> None:
        """Call a method of the recorded loop, if there is one."""
        monitor = self._monitor
        if monitor is not None and monitor._loop is not None:
            monitor._tell(getattr(monitor._loop, method), *args)

    def _call_epoch_method(self, method: str) -> None:
        """Tell the loop that an epoch begins or ends; the next batch is asked for then."""
        self._call_loop(method)
        self._note_request()

    def _note_request(self, *_: object, **__: object) -> None:
        """Note that the trainer may now ask for its next batch."""
        self._request_s = time.perf_counter()

    def _begin_step(self, waited_s: float | None, batch: Callable[[], object]) -> None:
        """Begin a step that waited so many seconds for its batch; None = not known.

        Args:
            batch: returns it; asked for the first steps.
        """
        look_at, self._look_at = self._look_at, None
        if look_at is not None:
            with suppress(Exception):  # a batch can be any object
                self._look_at = look_at(batch())
        if self._monitor is not None:
            self._monitor.step(input_wait_s=waited_s).__enter__()

    def _end_step(self) -> None:
        """End the step; the next batch is asked for then."""
        if self._monitor is not None:
            self._monitor.step().__exit__(None)
        self._note_request()

    def _begin_phase(self, name: str) -> None:
        self._call_loop("phase_begin", name, name)

    def _end_phase(self) -> None:
        self._call_loop("phase_end")
        self._note_request()


# Hooks that are called during training, and modules of the library's own callbacks that do little.
_OTHERS = ("on_epoch_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_epoch_end")
_LIGHT = ("transformers.trainer_callback", "transformers.utils.notebook")


class _HuggingFace(TrainerHooks):
    """Hooks of `transformers.TrainerCallback`.

    A step's batch is fetched from the end of the last hook before it to its own first one: the
    callback has to be the last of the list for that.
    """

    _phase = ""  # under way

    def on_train_begin(self, args: object, *_: object, **arguments: object) -> None:
        others = getattr(sys._getframe(1).f_locals.get("self"), "callbacks", ())
        self._begin(arguments.get("train_dataloader"), getattr(args, "gradient_accumulation_steps", None), others)
        self._report_calls(lambda: self._hooks_of_others(others))

    def _hooks_of_others(self, callbacks: Iterable[object]) -> Iterator[_Reported]:
        """Yield the hooks of other callbacks, which are called before ours, but for the library's own light ones."""
        for callback in callbacks:
            for hook in _OTHERS if callback is not self else ():
                if getattr(getattr(callback, hook, None), "__module__", _LIGHT[0]) not in _LIGHT:
                    begins = partial(self._begin_hook, type(callback).__name__)
                    yield _Reported(callback, hook, begins, lambda _: self._call_loop("phase_end"))

    def _begin_hook(self, name: str, _: object) -> None:
        self._call_loop("phase_begin", name, "callback")

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        self._call_epoch_method("batches_begin")

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._begin_step(time.perf_counter() - self._request_s, _inputs_of_caller)

    def on_step_end(self, _args: object, _state: object, control: Any, **_: object) -> None:
        self._end_step()
        self._next_phase(control)

    def on_epoch_end(self, _args: object, _state: object, control: Any, **_: object) -> None:
        self._call_epoch_method("batches_end")
        self._next_phase(control)

    on_log = TrainerHooks._note_request

    def on_evaluate(self, _args: object, _state: object, control: Any, **_: object) -> None:
        self._next_phase(control)

    on_save = on_evaluate

    def _next_phase(self, control: Any) -> None:
        """End the phase under way, and begin the one that the trainer has announced, if any.

        Args:
            control: the trainer's `TrainerControl`.
        """
        if self._phase:
            self._end_phase()
        announced = {"validation": control.should_evaluate, "checkpoint": control.should_save}
        self._phase = next((phase for phase, is_next in announced.items() if is_next), "")
        if self._phase:
            self._begin_phase(self._phase)
        self._note_request()


def _inputs_of_caller() -> object:
    """Return the batch of transformers' loop, which calls our hook; None where its name has changed."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and "inputs" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["inputs"] if frame is not None else None


# Hooks of other callbacks that run between the work of two steps.
_BETWEEN_STEPS = frozenset({"on_train_batch_end", "on_train_epoch_end", "on_validation_end"})
_FETCH, _BATCH, _EPOCH = "train_dataloader_next", "run_training_batch", "run_training_epoch"


class _Lightning(TrainerHooks):
    """Hooks of `lightning.pytorch.Callback`, and of the trainer's profiler.

    Lightning calls its checkpoint callbacks last, so that hooks alone would take a checkpoint for a wait for
    input. The profiler knows when a batch is fetched, and each hook of each callback.
    """

    _waited_s: float | None = None
    _in_batch = False  # `training_step` fetches by itself where it takes an iterator

    def on_train_start(self, trainer: Any, *_: object) -> None:
        self._begin(trainer.train_dataloader, getattr(trainer, "accumulate_grad_batches", None), trainer.callbacks)
        self._part_by_action: dict[str, tuple[str, str]] = {}
        self._report_calls(lambda: self._actions(trainer.profiler))

    def _actions(self, profiler: Any) -> Iterator[_Reported]:
        yield _Reported(profiler, "start", before=self._begin_action)
        yield _Reported(profiler, "stop", after=self._end_action)

    def _part_of(self, action: str) -> tuple[str, str]:
        """Return what an action of Lightning's profiler counts as, and the callback that it calls.

        ("run_training_batch", ""), ("callback", "MyCallback"), …; ("", "") = it is not timed.
        """
        part = self._part_by_action.get(action)
        if part is None:
            owner, _, hook = action.rpartition(".")
            part = (hook, "") if hook in (_FETCH, _BATCH, _EPOCH) else ("", "")
            if owner.startswith("[Callback]") and hook in _BETWEEN_STEPS:  # a hook of a callback between two steps
                name = owner.removeprefix("[Callback]").partition("{")[0].rpartition(".")[2]
                is_own = name == type(self).__name__
                part = ("checkpoint", "checkpoint") if "Checkpoint" in name else ("callback", "" if is_own else name)
            self._part_by_action[action] = part
        return part

    def _begin_action(self, action: str) -> None:
        """Take the beginning of an action of Lightning's profiler as that of a phase, a batch or a step."""
        part, name = self._part_of(action)
        if name:
            self._call_loop("phase_begin", name, part)
        elif part == _BATCH:
            self._in_batch = True
        elif part == _FETCH and not self._in_batch:
            self._end_step()

    def _end_action(self, action: str) -> None:
        """Take the end of an action of Lightning's profiler as that of a phase, a batch, a step or a fetch."""
        part, name = self._part_of(action)
        if name:
            self._call_loop("phase_end")
        elif part == _BATCH:
            self._in_batch = False
        elif part == _EPOCH:
            self._end_step()
        elif part == _FETCH and not self._in_batch:
            self._waited_s = time.perf_counter() - self._request_s

    def on_train_epoch_start(self, *_: object) -> None:
        self._call_epoch_method("batches_begin")

    def on_train_batch_start(self, _trainer: object, _module: object, batch: object, *_: object) -> None:
        waited_s, self._waited_s = self._waited_s, None
        self._begin_step(waited_s, lambda: batch)

    def on_validation_start(self, *_: object) -> None:
        self._begin_phase("validation")

    def on_validation_end(self, *_: object) -> None:
        self._end_phase()

    def on_train_epoch_end(self, *_: object) -> None:
        self._call_epoch_method("batches_end")

    def on_exception(self, _trainer: object, _module: object, error: BaseException) -> None:
        self._end_recording(error)
