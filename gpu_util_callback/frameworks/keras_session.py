"""One call of `fit` between callback and recorder: what is put in place and put back."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from gpu_util_callback.frameworks.base import adapter_for
from gpu_util_callback.frameworks.inputs import describe_fit, seen_through, source_of
from gpu_util_callback.frameworks.keras_callbacks import (
    CallbackTimer,
    describe_callbacks,
    find_callback_list,
)
from gpu_util_callback.frameworks.keras_fit import FitWatch, InputTimer, calling_fit, is_tf_keras
from gpu_util_callback.frameworks.keras_windows import KerasWindows, open_windows
from gpu_util_callback.frameworks.variables import names_in_fit
from gpu_util_callback.recorder import Recorder, close_left_over
from gpu_util_callback.settings import Settings

__all__ = ["KerasSession", "announce_known_failure", "leave_out"]

log = logging.getLogger("gpu_util_callback")

WORKERS_HAVE_NO_STAGES = (
    "pipeline",
    "Keras runs the workers of a PyDataset itself and switches tf.data's own account off for it",
    "",
)


def announce_known_failure(backend: str) -> None:
    """Say in one line where Keras' own `fit` will fail, so that nobody thinks it is us."""
    if backend != "tensorflow" or "TF_CONFIG" not in os.environ or "tensorflow" not in sys.modules:
        return
    from gpu_util_callback.frameworks.tensorflow_distribute import multi_worker_failure

    failure = multi_worker_failure()
    if failure is not None:
        log.warning("gpu_util_callback: %s: %s", *failure)


def leave_out(callback: Any) -> None:
    """Have the fit that is calling `callback` call it no more."""
    callbacks = find_callback_list(callback)
    if callbacks is not None:  # a new list: Keras is going through the old one
        callbacks.callbacks = [one for one in callbacks.callbacks if one is not callback]


def _goes_on(other: FitWatch, new: FitWatch) -> bool:
    """Whether a recorded fit goes on while a new one begins (in a callback, on a thread)."""
    return other.known and not other.over() and not other.same_place(new)


class KerasSession:
    """A fit being recorded. Nothing that goes wrong in here leaves it.

    Args:
        callback: the callback that fit calls.
        settings: its checked arguments.
        outer: the same callback's session of a fit that waits for this one, within it.
    """

    def __init__(self, callback: Any, settings: Settings, outer: KerasSession | None = None):
        self.outer = outer
        self._callback = callback
        self._settings = settings
        self._thread = threading.get_ident()
        self._beginning = True
        self._recorder: Recorder | None = None
        self._timer: CallbackTimer | None = None
        self._input: InputTimer | None = None
        self._windows: KerasWindows | None = None
        self.listed = False  # the CallbackList is timed itself, so our own hooks need not
        self._arm: Callable[[], None] = lambda: None  # says that a batch begins
        self._testing = False
        self._fit: Any = None  # the CallbackList of the fit, a new one in every fit

    def begun_in_this_fit(self) -> bool:
        """Whether the fit that is calling now began this session: a callback listed twice."""
        return self._fit is not None and find_callback_list(self._callback) is self._fit

    def on_this_thread(self) -> bool:
        """Whether the fit is one of the calling thread's."""
        return self._thread == threading.get_ident()

    def goes_on(self) -> bool:
        """Whether the fit is still under way, as far as that can be seen."""
        recorder = self._recorder
        if recorder is None or self._beginning:
            return self._beginning
        return not recorder.off and not recorder.watch.over()

    def begin(self, model: Any, params: dict | None, backend: str) -> None:
        """Training begins: put everything in place; on the training thread."""
        try:
            self._begin(model, params, backend)
        finally:
            self._beginning = False

    def _begin(self, model: Any, params: dict | None, backend: str) -> None:
        callbacks = find_callback_list(self._callback)
        self._fit = callbacks
        if callbacks is not None:
            first = next(c for c in callbacks.callbacks if type(c) is type(self._callback))
            if first is not self._callback:
                log.warning(
                    "gpu_util_callback: this fit has two GpuUtilCallbacks; the first one records"
                )
                return
        frame = calling_fit()
        if is_tf_keras(model):
            backend = "tensorflow"
        adapter = adapter_for(backend)
        recorder = Recorder(self._settings, adapter)
        watch = FitWatch(frame)
        close_left_over(keep=lambda other: _goes_on(other.watch, watch))
        self._recorder = recorder
        recorder.on_over = self.restore
        try:
            self._put_in_place(
                model, params or {}, callbacks, frame, watch, recorder, adapter, backend
            )
        except BaseException:
            self.restore()
            raise

    def _put_in_place(
        self,
        model: Any,
        params: dict,
        callbacks: Any,
        frame: Any,
        watch: FitWatch,
        recorder: Recorder,
        adapter: Any,
        backend: str,
    ) -> None:
        timeline = recorder.timeline
        self._input = InputTimer(timeline, lambda error: recorder.fail("input set-up", error))
        try:
            self._input.attach(frame)
        except Exception as error:
            recorder.fail("input set-up", error)
        try:
            adapter.begin(model, timeline, self._stale, recorder.fail)
        except Exception as error:
            adapter.end()
            recorder.fail("input wait", error)
        self._arm = adapter.begins_batches()
        if callbacks is not None:
            self._timer = CallbackTimer(
                timeline,
                self._callback,
                lambda error: recorder.fail("callback times", error),
                self._begun,
            )
            try:
                self._timer.attach(callbacks)
                self.listed = True
            except Exception as error:
                self._timer.detach()
                recorder.fail("callback times", error)
        else:
            recorder.unavailable.append(
                {
                    "source": "callback times",
                    "reason": "the list of callbacks could not be found",
                    "cure": "pass GpuUtilCallback to fit directly, not inside another callback",
                }
            )
        recorder.hook_sums = self._timer.sums if self._timer is not None else []
        recorder.facts["fit"] = {
            "epochs": params.get("epochs"),
            "steps_per_epoch": params.get("steps"),
            "timing": adapter.timing,
            **self._described(frame, backend, recorder),
        }
        recorder.watch = watch
        others = callbacks.callbacks if callbacks is not None else []
        try:
            recorder.facts["fit"]["callbacks"] = describe_callbacks(others)
        except Exception as error:
            recorder.fail("facts about the callbacks", error)
        try:
            self._windows = open_windows(recorder, backend, others, params.get("steps"))
        except Exception as error:
            recorder.fail("profiler windows", error)
        recorder.start(watch)  # the account begins here: our own set-up is not in it
        timeline.begin()

    def _described(self, frame: Any, backend: str, recorder: Recorder) -> dict[str, Any]:
        try:
            facts = describe_fit(frame, backend)
            if not self._settings.redact and frame is not None:
                source = source_of(seen_through(frame.f_locals.get("x")))
                facts["variables"] = names_in_fit(frame, source)
            if backend == "tensorflow" and facts.get("input_queue") is not None:
                recorder.adapter.has_stages = False
                recorder.adapter.unavailable.append(WORKERS_HAVE_NO_STAGES)
            return facts
        except Exception as error:
            recorder.fail("facts about the input", error)
            return {}

    def _stale(self) -> None:
        """The training ended without telling us."""
        if self._recorder is not None:
            self._recorder.end("interrupted", deadline_s=0)

    def restore(self) -> None:
        """Leave model, callbacks and input as they were found. May be called more than once."""
        recorder, timer, watch = self._recorder, self._timer, self._input
        for undo in (
            timer.detach if timer is not None else None,
            watch.detach if watch is not None else None,
            recorder.adapter.end if recorder is not None else None,
            recorder.windows.abandon if recorder is not None and recorder.windows else None,
        ):
            try:
                if undo is not None:
                    undo()
            except Exception as error:
                log.debug("gpu_util_callback: %s", error, exc_info=True)

    # ---- hooks; each is called on the training thread ----------------------------------------

    def _begun(self, batch: int, logs: Any = None) -> None:
        """A training batch begins, where the list of callbacks was found; runs every step."""
        recorder = self._recorder
        if recorder is None or recorder.status:
            return
        try:
            self._arm()
            if self._windows is not None:
                self._windows.batch_begin()
        except Exception as error:
            self._callback._give_up(self, error)

    def batch_begin(self) -> None:
        """A training batch begins; needed only where the list of callbacks was not found."""
        recorder = self._recorder
        if recorder is None or recorder.status:
            return
        recorder.timeline.batch_begin()
        self._begun(0)

    def batch_end(self) -> None:
        """A training batch ended; needed only where the list of callbacks was not found."""
        recorder = self._recorder
        if not self.listed and recorder is not None and not recorder.off:
            recorder.timeline.batch_end()

    def epoch_begin(self, epoch: int) -> None:
        """An epoch begins."""
        recorder = self._recorder
        if not self.listed and recorder is not None and not recorder.off:
            recorder.timeline.epoch_begin(epoch)
            recorder.timeline.epoch_begun()

    def epoch_end(self) -> None:
        """An epoch ended."""
        recorder = self._recorder
        if not self.listed and recorder is not None and not recorder.off:
            recorder.timeline.epoch_end()
            recorder.timeline.epoch_ended()
        if self._windows is not None:
            self._windows.epoch_end()

    def test_begin(self) -> None:
        """A validation begins (or somebody's own evaluation)."""
        recorder = self._recorder
        if recorder is None or recorder.off:
            return
        if not self.listed:
            recorder.timeline.test_begin()
        if self._windows is not None:
            self._windows.test_begin()
        recorder.adapter.test_begin()
        self._testing = True

    def test_batch_begin(self) -> None:
        """A validation batch begins."""
        recorder = self._recorder
        if not self._testing or recorder is None or recorder.off:
            return
        if not self.listed:
            recorder.timeline.test_batch_begin()
        recorder.adapter.test_batch_begin()

    def test_batch_end(self) -> None:
        """A validation batch ended."""
        recorder = self._recorder
        if self._testing and not self.listed and recorder is not None and not recorder.off:
            recorder.timeline.test_batch_end()

    def test_end(self) -> None:
        """A validation ended."""
        recorder = self._recorder
        if not self._testing or recorder is None:
            return
        self._testing = False
        if not self.listed and not recorder.off:
            recorder.timeline.test_end()
            recorder.timeline.test_ended()
        recorder.adapter.test_end()

    def give_up(self) -> None:
        """Something of ours went wrong: training goes on, recording does not."""
        self.restore()
        self._stale()

    def end(self) -> None:
        """Training ended: close the recording and say what it shows."""
        recorder = self._recorder
        if recorder is None:
            return
        if self._windows is not None:
            self._windows.end()
        recorder.end("ended")
        recorder.say_verdict()
