"""One call of `fit` between callback and recorder: what is installed, restored, and logged."""

from __future__ import annotations

import math
import sys
import threading
from types import FrameType
from typing import Any, Protocol

import numpy as np

from gpu_util_callback.backends.adapters import adapter_for
from gpu_util_callback.backends.functions import KerasModel, TimedFunction
from gpu_util_callback.backends.inputs import describe_fit, digest, seen_through, source_of
from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.recorder.fit_windows import KerasWindows, open_windows
from gpu_util_callback.recorder.memory_watch import note_fit
from gpu_util_callback.recorder.messages import debug, note
from gpu_util_callback.recorder.model_work import TRAINING
from gpu_util_callback.recorder.outputs import ScalarPoints
from gpu_util_callback.recorder.recorder import Recorder, close_left_over
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.recording.segments import SampleBlock, Tables
from gpu_util_callback.recording.work import mfu_of
from gpu_util_callback.steps.callback_list import (
    BatchHooks,
    CallbackList,
    CallbackTimer,
    InputTimer,
    describe_callbacks,
    find_callback_list,
)
from gpu_util_callback.steps.dispatch import DispatchWatch
from gpu_util_callback.steps.frames import FitWatch, calling_fit, given_adapter, is_tf_keras, names_in_fit

WORKERS_HAVE_NO_STAGES: Unavailable = {
    "source": "pipeline",
    "reason": "Keras runs the workers of a PyDataset itself and turns tf.data's own statistics off for it",
    "cure": "",
}
NO_LIST: Unavailable = {
    "source": "callback times",
    "reason": "the list of callbacks could not be found",
    "cure": "pass GpuUtilCallback to fit directly, not inside another callback",
}


def leave_out(callback: object) -> None:
    """Remove `callback` from the fit that is calling it."""
    callbacks = find_callback_list(callback)
    if callbacks is not None:  # a new list: Keras is going through the old one
        callbacks.callbacks = [member for member in callbacks.callbacks if member is not callback]


def _input_facts(frame: FrameType | None, backend: str, redact: bool) -> tuple[dict[str, object], Exception | None]:
    """Return facts about the input of a fit, for the manifest's `fit`, and the error met on the way (None = none).

    Args:
        frame: of the fit; None = not found.
        redact: leave out the program's own names of its variables.
    """
    try:
        facts = describe_fit(frame, backend)
        if not redact and frame is not None:
            source = source_of(seen_through(frame.f_locals.get("x")))
            facts["variables"] = names_in_fit(frame, source)
        return facts, None
    except Exception as error:
        return {}, error


def _iteration(model: Any) -> int | None:
    """Return how many batches the optimizer was given so far; None where it does not count.

    To be called once a fit, before the device has work: reading the counter waits for it.
    """
    try:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # within one that scales the loss
        # `iterations` counts updates, each of so many batches.
        return int(optimizer.iterations) * (getattr(optimizer, "gradient_accumulation_steps", None) or 1)
    except Exception:  # no optimizer, or one that does not count
        return None


def _continues(other: FitWatch, new: FitWatch) -> bool:
    """Return whether a recorded fit continues while a new one begins (in a callback or thread)."""
    return other.located and not other.over() and not other.same_place(new)


def _kind_of(
    model: Any, params: dict, frame: FrameType | None, adapter: str, facts: dict[str, object]
) -> tuple[object, ...]:
    """Return what fits of one series share, for `Recorder.continues`; None in it = unknown (a model not built yet).

    Args:
        params: Keras' own: `epochs`, `steps`.
        frame: of the fit; None = not found.
        adapter: name of the backend.
        facts: about the input.
    """
    built = bool(getattr(model, "built", False))
    first = frame.f_locals.get("initial_epoch") if frame is not None else 0
    return (
        threading.get_ident(),
        adapter,
        type(model),
        len(model.variables) if built else None,
        len(model.trainable_variables) if built else None,
        type(getattr(model, "optimizer", None)),
        getattr(model, "steps_per_execution", 1),
        bool(getattr(model, "run_eagerly", False)),
        (params.get("epochs") or 0) - (first or 0),
        facts.get("input_kind"),
        facts.get("batch_size"),
    )


class FitCallback(BatchHooks, Protocol):
    """The callback that records a fit."""

    _model: KerasModel

    def _give_up(self, session: KerasSession, error: Exception) -> None: ...


class KerasSession:
    """A fit being recorded. No error in here leaves it.

    Args:
        callback: the callback that fit calls.
        settings: its checked arguments.
        before: the recorder of the same callback's fit before, which this fit may continue.
    """

    def __init__(self, callback: FitCallback, settings: Settings, before: Recorder | None = None):
        self._before = before
        self._callback = callback
        self._settings = settings
        self._beginning = True  # until `begin` is done
        self.recorder: Recorder | None = None  # where the fit is recorded
        self._timer: CallbackTimer | None = None
        self._input: InputTimer | None = None
        self._windows: KerasWindows | None = None
        self._logs: EpochLogs | None = None
        self._function: TimedFunction | None = None  # the model's timed train function; None = not timed
        self._testing = False  # a validation is under way
        self._fit: CallbackList | None = None  # the CallbackList of the fit, a new one in every fit

    def begun_in_this_fit(self) -> bool:
        """Return whether the calling fit began this session: a callback listed twice."""
        return self._fit is not None and find_callback_list(self._callback) is self._fit

    def goes_on(self) -> bool:
        """Return whether the fit of this session is still running while another one calls."""
        recorder = self.recorder
        if recorder is None or self._beginning:
            return self._beginning
        return not recorder.off and _continues(recorder.watch, FitWatch(calling_fit()))

    def begin(self, model: KerasModel, params: dict | None, backend: str) -> None:
        """Begin training: install everything; on the training thread."""
        try:
            self._begin(model, params, backend)
        finally:
            self._beginning = False

    def _begin(self, model: KerasModel, params: dict | None, backend: str) -> None:
        """Begin to record a fit: as another fit of the last recording where that may continue, or in one of its own."""
        callbacks = find_callback_list(self._callback)
        self._fit = callbacks
        if callbacks is not None:
            first = next(c for c in callbacks.callbacks if type(c) is type(self._callback))
            if first is not self._callback:
                note("this fit has two GpuUtilCallbacks; the first one records")
                return
        frame = calling_fit()
        if is_tf_keras(model):  # whatever Keras 3's backend is
            backend = "tensorflow"
        watch = FitWatch(frame)
        facts, problem = _input_facts(frame, backend, self._settings.redact)
        kind = _kind_of(model, params or {}, frame, backend, facts)
        last_recorder, self._before = self._before, None
        counts_steps = self._settings.trace not in (None, TraceSchedule())  # of each fit, to profile some
        goes_on = last_recorder is not None and not counts_steps and last_recorder.continues(kind)
        if last_recorder is not None and goes_on:
            recorder = last_recorder
            recorder.adapter.unavailable.clear()  # its `begin` finds them again
        else:
            recorder = Recorder(self._settings, adapter_for(backend))  # a recording of its own
        recorder.kind = kind
        close_left_over(
            keep=lambda other: (
                other is recorder or other.idles_elsewhere(recorder.settings.log_dir) or _continues(other.watch, watch)
            )
        )
        self.recorder = recorder
        recorder.on_over = self.restore
        if problem is not None:
            recorder.fail("facts about the input", problem)
        # Keras' workers make the batches: tf.data has no stages to read
        if backend == "tensorflow" and facts.get("input_workers"):
            recorder.adapter.has_stages = False
            recorder.adapter.unavailable.append(WORKERS_HAVE_NO_STAGES)
        try:
            self._install(model, callbacks, frame, recorder)
            if goes_on:
                recorder.continue_(watch)
            else:
                self._open(recorder, watch, params or {}, callbacks, backend, facts)
            recorder.timeline.begin()
        except BaseException:
            self.restore()
            if goes_on:
                recorder.end("ended", deadline_s=0)
            raise

    def _install(
        self, model: KerasModel, callbacks: CallbackList | None, frame: FrameType | None, recorder: Recorder
    ) -> None:
        """Install what times the fit: input, train function, callbacks. A part that fails is named."""
        timeline, adapter = recorder.timeline, recorder.adapter
        with recorder.guarded("samples per second"):
            recorder.counts_batches_of(given_adapter())
        with recorder.guarded("models in memory"):
            note_fit(model)
        recorder.given = digest(frame.f_locals.get("x")) if frame is not None else None
        if self._settings.logs:
            with recorder.guarded("epoch logs"):
                self._logs = EpochLogs(recorder)
        self._input = InputTimer(timeline, lambda error: recorder.fail("input set-up", error))
        with recorder.guarded("input set-up"):
            self._input.attach(frame)
        try:
            adapter.begin(model, timeline, self._stale, recorder.fail)
        except Exception as error:
            adapter.end()
            recorder.fail("input wait", error)
        self._function = adapter.train_function
        self._time_callbacks(callbacks, recorder)

    def _time_callbacks(self, callbacks: CallbackList | None, recorder: Recorder) -> None:
        """Time the fit's callbacks; where the list is None or cannot be wrapped, only our own callback's hooks."""
        timer = self._timer = CallbackTimer(
            recorder.timeline,
            self._callback,
            lambda error: recorder.fail("callback times", error),
            self._batch_begins,
            self._logs.add_to if self._logs is not None else None,
        )
        try:
            if callbacks is not None:
                timer.attach(callbacks)
        except Exception as error:
            timer.detach()
            recorder.fail("callback times", error)
            callbacks = None
        if callbacks is None:
            timer.sums.clear()
            timer.attach_alone()
            if NO_LIST not in recorder.unavailable:
                recorder.unavailable.append(NO_LIST)
        recorder.intake.take_sums(timer.sums)

    def _open(
        self,
        recorder: Recorder,
        watch: FitWatch,
        params: dict,
        callbacks: CallbackList | None,
        backend: str,
        facts: dict[str, object],
    ) -> None:
        """Begin a recording of its own: facts of the fit, profiler windows, the watch on what the steps do.

        Args:
            params: Keras' own: `epochs`, `steps`.
            facts: about the input.
        """
        recorder.facts["fit"] = {
            "epochs": params.get("epochs"),
            "steps_per_epoch": params.get("steps"),
            "timing": recorder.adapter.timing,
            **facts,
        }
        recorder.watch = watch
        callbacks_of_fit = callbacks.callbacks if callbacks is not None else []
        with recorder.guarded("facts about the callbacks"):
            recorder.facts["fit"]["callbacks"] = describe_callbacks(callbacks_of_fit)
        with recorder.guarded("profiler windows"):
            self._windows = open_windows(
                recorder, backend, callbacks_of_fit, params.get("steps"), params.get("epochs") or 0
            )
        timeline = recorder.timeline
        thread, called_back = threading.get_ident(), recorder.adapter.runtime.called_back
        recorder.dispatch = DispatchWatch(backend, thread, lambda: timeline.working, watch.code, None, called_back)
        recorder.start(watch)  # the account begins here: our own set-up is not in it

    def _stale(self) -> None:
        """Close the recording of a training that ended without notice.

        An error of memory that is being handled is noted.
        """
        if self.recorder is not None:
            where = "validation" if self._testing else "the train function"
            self.recorder.memory.failed(sys.exc_info()[1], where)
            self.recorder.end("interrupted", deadline_s=0)

    def restore(self) -> None:
        """Restore model, callbacks and input as they were found. May be called more than once."""
        recorder, timer, watch = self.recorder, self._timer, self._input
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
                debug("not put back", error)

    # ---- hooks; each is called on the training thread ----------------------------------------

    def _batch_begins(self, now: int) -> None:
        """Begin a training batch, at `now` (perf ns), before all callbacks' hooks; runs every step."""
        recorder = self.recorder
        if recorder is None or recorder.off:
            return
        try:
            function, windows = self._function, self._windows
            if function is not None:  # as `arm` does, without the call
                function.armed = True
                if function.model.train_function is not function.wrapper:
                    function.wrap()
                    if windows is not None:
                        windows.away = None  # calls may take another number of batches
            # no window, or none soon: nothing to do
            if windows is not None and (windows.away is None or now >= windows.away.attends_ns):
                windows.batch_begin(now)
        except Exception as error:
            self._callback._give_up(self, error)

    def epoch_begin(self, epoch: int) -> None:
        """Begin an epoch; the first one says where in the training the fit begins."""
        recorder = self.recorder
        if recorder is not None and not recorder.begins_at:
            recorder.begins_at = {"first_epoch": epoch, "first_iteration": _iteration(self._callback._model)}

    def epoch_end(self) -> None:
        if self._windows is not None:
            self._windows.epoch_end()

    def test_begin(self) -> None:
        """Begin a validation, or an evaluation of the user's own in the fit; nothing once recording is off."""
        recorder = self.recorder
        if recorder is None or recorder.off:
            return
        if self._windows is not None:
            self._windows.test_begin()
        recorder.adapter.test_begin()
        self._testing = True

    def test_batch_begin(self) -> None:
        """Begin a validation batch."""
        recorder = self.recorder
        if self._testing and recorder is not None and not recorder.off:
            recorder.adapter.test_batch_begin()

    def test_end(self) -> None:
        """End a validation."""
        recorder = self.recorder
        if not self._testing or recorder is None:
            return
        self._testing = False
        recorder.adapter.test_end()

    def give_up(self) -> None:
        """Stop recording after an error of ours; training continues."""
        self.restore()
        self._stale()

    def end(self) -> None:
        """End training: close the recording and print its verdict.

        A short fit of a series leaves it open, unprinted.
        """
        recorder = self.recorder
        if recorder is None or recorder.in_child:
            return
        if self._windows is not None:
            self._windows.end()
        if recorder.was_short:
            recorder.idle()
        else:
            recorder.end("ended")
            recorder.say_verdict()


class EpochLogs:
    """Sums over the training of the current epoch, and their means for its logs.

    Args:
        recorder: of the fit; an error is reported to it, and no more is added.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._names: list[str] | None = None  # of this fit: a CSV file has its columns at once
        self._samples = ScalarPoints(1)
        self._reset()
        recorder.intake.on_rows = self._add

    def _reset(self) -> None:
        """Forget the sums of the epoch before."""
        self._waits_measured = 0  # steps whose wait was measured
        self._samples_trained = 0.0  # NaN where a batch's size is not known
        self._training_ns = self._wait_ns = 0
        self._begin_ns, self._end_ns = np.iinfo(np.int64).max, 0

    def _add(self, tables: Tables, samples: list[SampleBlock]) -> None:
        """Add rows and samples to the epoch's sums."""
        try:
            for block in samples:
                self._samples.add_samples(block.group, block.columns, block.time_ns, block.values)
            if "steps" in tables:
                self._add_steps(tables["steps"])
            if "phases" in tables:
                self._add_phases(tables["phases"])
        except Exception as error:
            self._fail(error)

    def _add_steps(self, steps: dict[str, np.ndarray]) -> None:
        """Add the time, waits and samples of new rows of `steps`."""
        waits = steps["input_wait_ns"]
        sizes = self._recorder.work.sizes
        self._samples_trained += float(sizes.of(steps).sum()) if sizes is not None else math.nan
        self._waits_measured += int((waits >= 0).sum())
        self._wait_ns += int(waits[waits > 0].sum())
        self._training_ns += int(steps["duration_ns"].sum())
        self._extend_to(steps["start_ns"], steps["start_ns"] + steps["duration_ns"])

    def _add_phases(self, phases: dict[str, np.ndarray]) -> None:
        """Add the time of new rows of `phases` that belong to training."""
        accounts = phases["account"]
        rows = np.isin(accounts.astype(str), TRAINING)
        if rows.any():
            spent = phases["self_ns"]
            self._training_ns += int(spent[rows].sum())
            self._wait_ns += int(spent[rows & (accounts == "input_wait")].sum())
            self._extend_to(phases["start_ns"][rows], phases["end_ns"][rows])

    def _extend_to(self, starts: np.ndarray, ends: np.ndarray) -> None:
        """Extend the epoch to these rows: int64[rows] ns."""
        self._begin_ns = min(self._begin_ns, int(starts.min()))
        self._end_ns = max(self._end_ns, int(ends.max()))

    def add_to(self, logs: object) -> None:
        """Add the means of the epoch that ends now to its logs, NaN where unknown; on the training thread.

        All epochs of a fit get the same names.
        """
        recorder = self._recorder
        if recorder.intake.on_rows is None or recorder.off or not isinstance(logs, dict):
            return
        try:
            recorder.intake.catch_up()
            means = self._means()
            self._reset()
            if self._names is None:
                self._names = list(means)
                # It may be too early for a sample, or for the model's work.
                if self._used_gpus() or recorder.adapter.runtime.devices():
                    later_names = ("gpu_utilization_pct", "mfu_pct")
                    self._names += [name for name in later_names if name not in means]
            logs.update({name: means.get(name, math.nan) for name in self._names})
        except Exception as error:
            self._fail(error)

    def _means(self) -> dict[str, float]:
        """Return the epoch's means for Keras' logs: shares in percent, samples per second; absent if unknown.

        GPU values are means of the GPUs in use.
        """
        result: dict[str, float] = {}
        if not self._training_ns:
            return result
        if self._waits_measured:
            result["input_wait_pct"] = min(100.0, 100 * self._wait_ns / self._training_ns)
        means = self._samples.gpu_means(self._begin_ns, self._end_ns)
        gpu_pct = [means[gpu].get("utilization_pct") for gpu in self._used_gpus() if gpu in means]
        known_pct = [percent for percent in gpu_pct if percent is not None]
        if known_pct:
            result["gpu_utilization_pct"] = sum(known_pct) / len(known_pct)
        rate = 1e9 * self._samples_trained / self._training_ns
        if rate > 0:  # not NaN
            result["samples_per_s"] = rate
            mfu = [mfu_of(rate, peak_rate) for peak_rate in self._recorder.work.rates.values()]
            shares = [share for share in mfu if share is not None]
            if shares:
                result["mfu_pct"] = sum(shares) / len(shares)
        return result

    def _used_gpus(self) -> list[str]:
        gpus = self._recorder.gpus
        return [f"gpu{gpu['index']}" for gpu in gpus if gpu.get("used_by_framework")]

    def _fail(self, error: Exception) -> None:
        self._recorder.intake.on_rows = None
        self._recorder.fail("epoch logs", error)
