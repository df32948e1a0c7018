"""GpuUtilMonitor: records where the time of your own training loop goes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Generic, TypeVar

from gpu_util_callback.backends.adapters import LoopAdapter, framework_in_use
from gpu_util_callback.backends.base import BACKENDS
from gpu_util_callback.backends.functions import TimedBatches
from gpu_util_callback.backends.input_calls import StandIn
from gpu_util_callback.backends.input_watch import finished_batches
from gpu_util_callback.backends.inputs import describe_input, describe_validation, seen_through, source_of
from gpu_util_callback.recorder.fit_windows import open_windows
from gpu_util_callback.recorder.messages import note
from gpu_util_callback.recorder.recorder import Recorder, close_left_over
from gpu_util_callback.recorder.settings import checked_settings
from gpu_util_callback.steps.frames import FitWatch, names_in_loop, uncounted
from gpu_util_callback.steps.loop import Loop
from gpu_util_callback.steps.rows import UNSEEN, Stamp

__all__ = ["GpuUtilMonitor"]

Batch = TypeVar("Batch")

VALIDATIONS = ("validation", "validate", "evaluation", "evaluate", "eval", "test")
CHECKPOINTS = ("checkpoint", "checkpoints", "save")


class GpuUtilMonitor:
    """Context manager that records why the GPU is idle during a training loop of your own.

    The same as `GpuUtilCallback`, for loops without `fit`: plain TensorFlow, JAX or PyTorch. The
    loop is neither stopped nor slowed down, and no device is waited for: whatever cannot be
    measured is left out and named. Enter it after `jax.distributed.initialize` or
    `torch.distributed.init_process_group`, in every process of the job. `sample_hz`, `scalar_freq`,
    `trace`, `overhead_budget`, `thresholds`, `job`, `redact` and `report` are as for
    `GpuUtilCallback`.

    Args:
        log_dir: Where the recording and the scalars go: a TensorBoard run. Any URL that fsspec
            understands works too.
        framework: `"tensorflow"`, `"jax"` or `"torch"`; by default the one that is imported.
        flops_per_sample: FLOPs of training on one sample, forward and backward, two a multiply-add:
            what MFU rests on.
        memory_stacks: Keep who held the memory beside the post-mortem of an out-of-memory error:
            JAX's device memory profile, or PyTorch's memory snapshot, for which PyTorch notes the
            stack of each allocation on a GPU while it trains. Not with `redact`.
        on_stuck: A function that is called with a dictionary when no step has come for long
            (`"over": False`), and when steps go on (`True`); `"text"` is the line that is printed.
            On a thread of ours: it may take its time, and an error in it is only logged.
        on_finding: A function that is called likewise, once for each cause that is established
            while training continues; `"text"` is its line, `"finding"` that of the report.

    Raises:
        TypeError, ValueError: an argument cannot be used. Nothing is raised later on.

    Example:

    ```python
    with GpuUtilMonitor("logs/run1") as monitor:
        for epoch in range(10):
            for batch in monitor.batches(dataset):
                train_step(batch)
            with monitor.phase("validation"):
                for batch in monitor.batches(validation_dataset):
                    test_step(batch)
    ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike = "logs",
        *,
        framework: str | None = None,
        sample_hz: float = 10,
        scalar_freq: int | str = "auto",
        trace: object = "auto",
        overhead_budget: float = 0.01,
        thresholds: dict | None = None,
        job: str | None = None,
        redact: bool = False,
        report: bool = True,
        flops_per_sample: float | None = None,
        memory_stacks: bool = False,
        on_stuck: Callable[[dict], object] | None = None,
        on_finding: Callable[[dict], object] | None = None,
    ):
        arguments = {name: value for name, value in locals().items() if name not in ("self", "framework")}
        self._settings = checked_settings(**arguments)
        if framework is not None and framework not in BACKENDS:
            raise ValueError(f"framework must be one of {', '.join(BACKENDS)}, got {framework!r}")
        self._framework = framework
        self._recorder: Recorder | None = None
        self._adapter: LoopAdapter | None = None
        self._loop: Loop | None = None
        self._described: set[bool] = set()  # of the training's input, of a validation's
        self._has_names: set[bool] = set()  # likewise: its names were noted
        self._looked = False  # the input's functions were looked at

    # ---- begin and end ---------------------------------------------------------------------

    def __enter__(self) -> GpuUtilMonitor:
        self.begin_in(sys._getframe(1), FitWatch(None, located=True))  # `__exit__` is always called
        return self

    def begin_in(self, loop: FrameType, watch: FitWatch) -> None:
        """Begin to record the loop in this frame; `watch` tells when it has been left."""
        try:
            self._begin(loop.f_code, watch)
        except Exception as error:
            self._give_up(error)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the recording; by an error that leaves the loop it is interrupted, and the error propagates."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            if kind is None:
                if self._loop is not None:
                    self._loop.leave()
                recorder.end("ended")
                recorder.say_verdict()
            else:
                validating = self._loop is not None and self._loop.validating
                recorder.memory.failed(error, "validation" if validating else "a step")
                recorder.end("interrupted")
        except Exception as problem:
            self._give_up(problem)
        finally:  # whatever happened, Ctrl+C in here included
            recorder.end("interrupted", deadline_s=0)

    def _begin(self, caller: CodeType, watch: FitWatch) -> None:
        """Begin to record: the recorder, its timeline, and the loop's adapter.

        Args:
            caller: the code that has the loop.
            watch: on the loop: whether it has been left.
        """
        adapter = LoopAdapter(*((self._framework, False) if self._framework else framework_in_use()))
        recorder = Recorder(self._settings, adapter)
        close_left_over(keep=lambda other: not other.watch.over())
        loop = Loop(recorder.timeline)
        adapter.attach(loop, recorder.fail)
        recorder.on_over = lambda: _restore_loop(adapter, recorder, loop)
        recorder.intake.hook_sums = loop.sums
        recorder.counts_batches_of(None)
        recorder.facts["fit"] = {"timing": adapter.timing, "loop": "custom"}
        # Before anything runs: an error from here on ends the recording.
        self._recorder, self._adapter, self._loop = recorder, adapter, loop
        self._described, self._has_names, self._looked = set(), set(), False
        recorder.dispatch = adapter.dispatch(loop, caller)
        recorder.start(watch)
        with recorder.guarded("profiler windows"):
            if adapter.name in BACKENDS:
                loop.windows = open_windows(recorder, adapter.name, (), None)
        recorder.timeline.begin()

    def _give_up(self, error: BaseException) -> None:
        """End a recording that failed, and say so."""
        recorder, self._recorder, self._loop = self._recorder, None, None
        note(f"recording stopped ({type(error).__name__}: {error}); training continues")
        if recorder is not None:
            recorder.end("interrupted", deadline_s=0)

    def _tell(self, method: Callable[..., None], *args: object) -> None:
        """Call a method of the timeline or loop, if something is recorded.

        An error of ours ends the recording alone.
        """
        if self._recorder is None:
            return
        try:
            method(*args)
        except Exception as error:
            self._give_up(error)

    # ---- the loop's interface --------------------------------------------------------------

    def batches(self, dataset: Iterable[Batch]) -> Iterable[Batch]:
        """Return the dataset's batches, one training step each; in a validation, one of its steps.

        A step lasts from the request for its batch to the request for the next. The wait for the
        batch is measured separately. Iterate over the result as often as over the dataset.

        Args:
            dataset: anything to iterate over: a `tf.data.Dataset` (distributed or not), a torch
                `DataLoader`, a `PyDataset`, a generator.
        """
        self._tell(self._note_name, dataset, sys._getframe(1))
        return _Batches(self, dataset)

    def phase(self, name: str) -> _Interval:
        """Mark work other than training: `with monitor.phase("validation"):`.

        Args:
            name: `"validation"`, `"evaluation"` or `"test"` makes a validation, whose batches are
                no training steps: put it after a step's work, or between epochs. `"checkpoint"`
                names the writing of one. Anything else is counted like a callback of that name.
        """
        word = name.lower()
        kind = "callback"
        if word in VALIDATIONS:
            kind = "validation"
        elif word in CHECKPOINTS:
            kind = "checkpoint"
        return _Interval(self, lambda loop: loop.phase_begin(name, kind), lambda loop, _: loop.phase_end())

    def fetch(self) -> _Interval:
        """Time the fetch of the next step's batch, for use with `step`: `with monitor.fetch():`."""
        return _Interval(self, Loop.fetch_begin, Loop.fetch_end)

    def step(self, *, input_wait_s: float | None = None) -> _Interval:
        """Time one training step, in loops that do not use `batches`: `with monitor.step():`.

        Args:
            input_wait_s: How long the loop waited for this step's batch just before, in seconds,
                if the loop has measured that itself and does not use `fetch`. Without either, the
                wait is unknown and left out.

        Example:

        ```python
        while training:
            with monitor.fetch():
                batch = queue.get()
            with monitor.step():
                train_step(batch)
        ```
        """
        return _Interval(self, partial(_begin_step, input_wait_s), lambda loop, _: loop.step_end())

    def _watch(self, iterator: Iterator, validating: bool) -> Callable[[], int] | None:
        """Watch the tf.data pipeline, or the input's functions, of what a loop iterates over.

        Returns: as `Runtime.local_fetch`: a clock of this process's own part of a batch; None = the whole batch.
        """
        recorder, adapter = self._recorder, self._adapter
        if recorder is None or adapter is None:
            return None
        with recorder.guarded("input wait of this worker alone"):  # TensorFlow's iterators may have changed
            adapter.iterates(iterator, validating)
            if not validating and not self._looked:
                self._looked = True
                recorder.look_at_input_soon()
            return adapter.runtime.local_fetch(iterator)
        return None

    def _timed_iterator(self, dataset: object, iterator: Iterator, validating: bool) -> Iterator:
        """Return an iterator whose Python functions are timed; the same where nothing is."""
        recorder, adapter = self._recorder, self._adapter
        if validating or recorder is None or adapter is None:
            return iterator
        with recorder.guarded("times of the input's functions"):
            return adapter.timed(dataset, iterator)
        return iterator

    def _note_first(self, iterator: Iterator, batch: object) -> Callable | None:
        """Hold the first batch until the recorder has looked at it, and return what holds the next."""
        self._watch(iterator, False)
        return self._adapter.first_batch.note(batch) if self._adapter is not None else None

    def _note_name(self, dataset: Iterable, frame: FrameType) -> None:
        """Note the loop's own names for its input and the monitor, once for training and once for validation.

        Args:
            frame: of the loop.
        """
        recorder, loop = self._recorder, self._loop
        if recorder is None or loop is None or self._settings.redact:
            return
        if loop.validating in self._has_names:
            return
        self._has_names.add(loop.validating)
        inner = seen_through(dataset)
        names = names_in_loop(frame, self, inner, source_of(inner), loop.validating)
        fit = recorder.facts.get("fit") or {}
        recorder.facts["fit"] = {**fit, "variables": {**fit.get("variables", {}), **names}}

    def _describe(self, dataset: Iterable, validating: bool) -> None:
        """Record what kind of input a loop (or its validation) reads, once each, and sample its functions."""
        if self._recorder is not None and validating not in self._described:
            self._described.add(validating)
            fit = self._recorder.facts.get("fit") or {}
            more = (describe_validation if validating else describe_input)(dataset)
            self._recorder.facts["fit"] = {**fit, **more}
            with self._recorder.guarded("samples of the input's functions"):
                if not validating and self._adapter is not None:
                    self._adapter.sample_input(dataset)


def _restore_loop(adapter: LoopAdapter, recorder: Recorder, loop: Loop) -> None:
    """Undo what recording changed in the loop's framework."""
    adapter.end()
    if recorder.windows is not None:
        recorder.windows.abandon()
    loop.leave()


@uncounted
class _Batches(StandIn, Generic[Batch]):
    """A dataset under the monitor; everything but its iteration is the dataset's own."""

    def __init__(self, monitor: GpuUtilMonitor, dataset: Iterable[Batch]):
        super().__init__(dataset)
        self._monitor = monitor

    def __iter__(self) -> Iterator[Batch]:
        """Yield the dataset's batches, each a step of the loop; as they are where nothing is recorded."""
        monitor, dataset = self._monitor, self._stands_for
        loop = monitor._loop
        if monitor._recorder is None or loop is None:
            yield from dataset
            return
        tell, timeline = monitor._tell, loop.timeline
        tell(monitor._describe, dataset, loop.validating)
        tell(loop.batches_begin)
        own_iterator = loop.current  # this pass, to see whether another one has begun since
        local: Callable[[], int] | None = None

        def came(stamp: Stamp, batch: Batch) -> None:
            """Begin a step with this batch; its stamp is requested, delivered, signature, busy until."""
            requested, delivered, signature, busy = stamp
            # this process had its part earlier: the rest was a wait for other workers
            if local is not None and requested <= local() < delivered:
                delivered = local()
            if loop.operations is not None:
                tell(loop.count_operations, batch)
            if monitor._recorder is None:
                return
            try:  # as `_tell` does, without the call
                loop.step_begin(requested, delivered, signature, busy)
            except Exception as error:
                monitor._give_up(error)

        try:
            iterator = iter(dataset)
            local = monitor._watch(iterator, loop.validating)
            timed = TimedBatches(
                monitor._timed_iterator(dataset, iterator, loop.validating),
                came,
                ended=lambda requested, now: tell(loop.input_ended, requested, now),
                requesting=partial(tell, loop.request) if loop.windows is not None else None,
                finished=None if loop.validating else finished_batches(iterator, timeline.handed),
                first=None if loop.validating else partial(monitor._note_first, iterator),
            )
            for batch in timed:
                if timeline.sampled:
                    timeline.own_step_ns += timed.own_ns
                yield batch
            # tf.data's autotuning holds up the end of an iterator, for seconds at times.
            began, local = time.perf_counter_ns(), None
            del timed, iterator
            tell(loop.input_taken_down, began, time.perf_counter_ns())
        finally:
            # Left by `break`, this runs when the generator is collected: perhaps much later.
            if loop.current == own_iterator:
                tell(loop.batches_end)


class _Interval:
    """A part of the loop, from what it calls at its beginning to what it calls at its end."""

    def __init__(self, monitor: GpuUtilMonitor, begin: Callable[[Loop], None], end: Callable[[Loop, bool], None]):
        self._monitor = monitor
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._call(self._begin)

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._call(self._end, kind is None)

    def _call(self, method: Callable[..., None], *args: object) -> None:
        """Call a method of the loop, and count the time as our own where this step's is measured."""
        loop = self._monitor._loop
        if loop is None:
            return
        began = time.perf_counter_ns()
        self._monitor._tell(method, loop, *args)
        if loop.timeline.sampled:
            loop.timeline.own_step_ns += time.perf_counter_ns() - began


def _begin_step(input_wait_s: float | None, loop: Loop) -> None:
    """Begin a step whose batch the loop has just waited for, for so long; None = as `fetch` has timed it."""
    now = time.perf_counter_ns()
    requested, delivered = loop.take_fetched() or (UNSEEN, now)
    if input_wait_s is not None:
        requested, delivered = now - max(0, int(input_wait_s * 1e9)), now
    loop.count_operations()
    loop.step_begin(requested, delivered)
