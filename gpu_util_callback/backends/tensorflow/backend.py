"""The TensorFlow backend: what is timed where, and what the framework says of itself."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gpu_util_callback.backends.keras import KerasAdapter
from gpu_util_callback.backends.own_cost import Model, Work, function_called, hooks_us
from gpu_util_callback.backends.tensorflow import (
    distribute as tensorflow_distribute,
)
from gpu_util_callback.backends.tensorflow import (
    facts as tensorflow_facts,
)
from gpu_util_callback.backends.tensorflow.distribute import is_distributed, timed_distributed
from gpu_util_callback.backends.tensorflow.iterator import (
    KEY,
    current,
    deterministic,
    holds_batches,
    probe,
    tail_ns,
    timed,
    timing_into,
)
from gpu_util_callback.backends.tensorflow.queue import RowQueue
from gpu_util_callback.backends.wrapped_function import WrappedFunction
from gpu_util_callback.steps.fit_frame import is_tf_keras
from gpu_util_callback.steps.frames import uncounted
from gpu_util_callback.steps.rows import InputRows
from gpu_util_callback.steps.timeline import TRACED, Timeline

__all__ = [
    "FunctionTimer",
    "TensorFlowAdapter",
    "adapter",
]

_KEPT = "_gpu_util_kept"  # on the function: its rows and its shapes, for the next fit


class FunctionTimer(WrappedFunction):
    """One model function under our wrapper.

    Args:
        model, name, called, no_batch, stale, raised, takes: as for `WrappedFunction`.
        way: "graph" or "eager": where batches are timed.
        seen: told of each iterator the function is given, once.
        failed: told of an error of ours.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        way: str,
        *,
        called: Callable[[int, int, int], None],
        no_batch: Callable[[int, int], None],
        stale: Callable[[], None] | None,
        failed: Callable[[BaseException], None],
        seen: Callable[[Any], None] = lambda iterator: None,
        raised: Callable[[], None] = lambda: None,
        takes: Callable[[int], None] = lambda batches: None,
    ):
        super().__init__(
            model, name,
            called=called, no_batch=no_batch, stale=stale, raised=raised, takes=takes,
        )  # fmt: skip
        self.way = way
        self.rows: RowQueue | None = None
        self.shapes: dict[float, int] = {}
        self._stamps: list[tuple[int, int]] = []
        self._left: list[np.ndarray] = []  # of a queue that was replaced
        self._left_ends: list[np.ndarray] = []
        self._iterator: Any = None  # a weak reference to the newest dataset iterator
        self._tell_seen = seen
        self._failed = failed
        self._anchor = _anchor()

    def _use_rows(self, inner: Any) -> None:
        """Write into the queue that is kept on the model's function."""
        kept = inner.__dict__.get(_KEPT)
        if kept is None:
            kept = (RowQueue(), {})
            if self._ends_are_seen():
                kept[0].ends = RowQueue()
            inner.__dict__[_KEPT] = kept
        if self.rows is not None:  # rows of calls that are not handed over yet
            self._left.append(self.rows.drain())
            self._left_ends.append(self._drain_ends())
        self.rows = kept[0]
        self.rows.drain()  # rows of a fit that was not ended properly
        self._drain_ends()
        self.shapes.update(kept[1])
        kept[1].update(self.shapes)
        self.shapes = kept[1]

    def drain(self) -> Callable[[], InputRows] | None:
        """The rows since the last drain; the returned call converts them, on any thread."""
        if self.way != "graph":
            stamps, self._stamps = self._stamps, []
            return lambda: InputRows.from_stamps(stamps)
        if self.rows is None:
            return None
        taken, ends = self.rows.take(), self._drain_ends()
        left, self._left = self._left, []
        left_ends, self._left_ends = self._left_ends, []
        before, self._anchor = self._anchor, _anchor()
        after = self._anchor
        return lambda: convert(
            np.concatenate([*left, RowQueue.table(taken)]),
            before, after,
            np.concatenate([*left_ends, ends]),
        )  # fmt: skip

    def _ends_are_seen(self) -> bool:
        """Whether a step's end in the graph is the end of its work: not where a GPU does it."""
        model = self.model
        return (
            int(getattr(model, "steps_per_execution", 1) or 1) > 1
            and int(getattr(model, "unrolled_steps_per_execution", 1) or 1) == 1
            and not tf.config.list_physical_devices("GPU")
        )

    def _drain_ends(self) -> np.ndarray:
        ends = self.rows.ends if self.rows is not None else None
        return ends.drain() if ends is not None else np.empty((0, RowQueue.WIDTH))

    @uncounted
    def _make(self, inner: Callable) -> Callable:
        if self.way == "graph":
            self._use_rows(inner)
        clock = time.perf_counter_ns
        rows = self.rows
        into_rows = timing_into(rows)

        # Runs every step, hence so few calls in it.
        def function(iterator):
            known = self._iterator
            if known is None or known() is not iterator:
                if not is_iterator(iterator):
                    return inner(iterator)  # `train_on_batch` passes a generator
                into_rows.hold = holds_batches(iterator)
                self._seen(iterator)
            if not self.armed:
                return self._unexpected(inner, iterator)
            self.armed = False
            given = getattr(iterator, KEY, None)
            if given is None:
                try:
                    given = self._twin(iterator)
                except Exception as error:
                    self._failed(error)
                    self.unwrap()
                    return inner(iterator)
            traces = rows.traces if rows is not None else 0
            start = clock()
            current.timing = into_rows if rows is not None else timing_into(None, self._stamps)
            try:
                result = inner(given)
            except (StopIteration, tf.errors.OutOfRangeError):
                self._no_batch(start, clock())
                raise
            except BaseException:
                self._raised()
                raise
            finally:
                current.timing = None
            end = clock()
            traced = rows is not None and rows.traces != traces
            self._called(start, end, TRACED if traced else 0)
            return result

        return function

    def _twin(self, iterator: Any) -> Any:
        return timed_distributed(iterator) if is_distributed(iterator) else timed(iterator)

    def _seen(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._tell_seen(iterator)

    @uncounted
    def _unexpected(self, inner: Callable, iterator: Any) -> Any:
        """A call that does not follow our own hook: the fit we belong to is over."""
        if self._stale is not None:
            self.unwrap()
            self._stale()
        return inner(iterator)


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of tf.data's, distributed or not."""
    return isinstance(value, tf.data.Iterator) or is_distributed(value)


def _anchor() -> tuple[int, int]:
    """(`time.perf_counter_ns`, wall clock) together."""
    before = time.perf_counter_ns()
    wall = time.time_ns()
    return (before + time.perf_counter_ns()) // 2, wall


def convert(
    rows: np.ndarray,
    before: tuple[int, int],
    after: tuple[int, int],
    ends: np.ndarray | None = None,
) -> InputRows:
    """RowQueue rows in wall-clock seconds, on the monotonic clock.

    Args:
        rows: float64 (n, 3) of a `RowQueue`.
        before: a reading of both clocks (monotonic, wall) from before the rows were written.
        after: the same from after.
        ends: the same of steps' ends, or None.

    Where the wall clock was set in between, each row takes the offset that puts it between the two
    readings.
    """
    wall = np.round(rows[:, :2] * 1e9).astype(np.int64)
    came = rows[:, 1] >= 0
    offset = _offsets(wall[:, 0], before, after)
    ended = None
    if ends is not None and len(ends):
        ended = np.round(ends[:, 1] * 1e9).astype(np.int64)
        ended += _offsets(ended, before, after)
    return InputRows(
        wall[:, 0] + offset,
        np.where(came, wall[:, 1] + offset, -1),
        rows[:, 2].copy(),
        ended_ns=ended,
    )


def _offsets(wall_ns: np.ndarray, before: tuple[int, int], after: tuple[int, int]) -> np.ndarray:
    """What takes each wall-clock stamp to the monotonic clock."""
    old, new = before[0] - before[1], after[0] - after[1]
    late = wall_ns + new
    fits = (late >= before[0] - 1_000_000) & (late <= after[0] + 1_000_000)
    return np.where(fits, new, old)


log = logging.getLogger("gpu_util_callback")

# How a way of timing is named in the recording.
TIMINGS = {
    "graph": "graph",
    "eager": "eager",
    "none": "hooks",
}


class TensorFlowAdapter(KerasAdapter):
    """Times batches inside the compiled train and test functions."""

    _train: FunctionTimer | None
    _test: FunctionTimer | None

    def __init__(self) -> None:
        super().__init__("tensorflow", "hooks", tensorflow_facts)
        self._timeline: Timeline | None = None
        self._failed: Callable[[str, BaseException], None] = lambda source, error: None
        self._way = "none"
        self._deterministic = False  # `enable_op_determinism()`
        self._test_stays = False  # wrapped from the fit's begin to its end

    def begin(
        self,
        model: Any,
        timeline: Timeline,
        stale: Callable[[], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._model, self._timeline, self._failed = model, timeline, failed
        timeline.batches_per_hook = int(getattr(model, "steps_per_execution", 1) or 1)
        self.every_shape_compiles = bool(getattr(model, "jit_compile", False))
        self.shapes_compile = self.every_shape_compiles or bool(
            tf.config.list_physical_devices("GPU")
        )
        failure = tensorflow_distribute.known_failure(model)
        if failure is not None:
            log.warning("gpu_util_callback: %s: %s", *failure)
        self._way = self._choose(model)
        self.timing = TIMINGS[self._way] + (" (determinism)" if self._deterministic else "")
        timeline.serial = self._way == "eager"
        self._train = self._timer("train_function", stale, timeline.no_batch, stale)
        self._test = self._timer("test_function", None, timeline.test_no_batch, stale)
        self._train.wrap()
        if self._way == "graph" and timeline.steps_per_execution > 1:
            timeline.tail_ns = tail_ns()
        self.shapes = self._train.shapes
        self._test_stays = is_tf_keras(model)
        if self._test_stays:
            # Keras 2 takes hold of the test function before it says that a validation begins.
            model.test_function = model.make_test_function()
            self._test.wrap()

    def _choose(self, model: Any) -> str:
        self._deterministic = deterministic()
        if getattr(model, "run_eagerly", False):
            return "eager"
        reason = probe()
        if not reason:
            return "graph"
        self.unavailable.append(
            (
                "input wait in the graph",
                f"this TensorFlow does not let batches be timed ({reason})",
                "report it with the version of TensorFlow; step times are measured without it",
            )
        )
        return "none"

    def _timer(
        self,
        name: str,
        stale: Callable[[], None] | None,
        no_batch: Callable[..., None],
        raised: Callable[[], None],
    ) -> FunctionTimer:
        assert self._timeline is not None
        which = "train" if name == "train_function" else "validation"
        return FunctionTimer(
            self._model,
            name,
            self._way,
            called=self._timeline.called,
            no_batch=no_batch,
            stale=stale,
            failed=lambda error: self._failed("input wait", error),
            seen=lambda iterator: self._pipelines.seen(which, iterator),
            raised=raised,  # what raises in there leaves the fit
            takes=self._timeline.takes if which == "train" else self._timeline.test_takes,
        )

    def test_begin(self) -> None:
        if not self._test_stays:
            super().test_begin()

    def test_end(self) -> None:
        if not self._test_stays:
            super().test_end()
        elif self._test is not None:
            self._test.armed = False

    def problems(self) -> list[tuple[str, str, str]]:
        found = list(self.unavailable)
        for timer in (self._train, self._test):
            if timer is None:
                continue
            if timer.rows is not None and timer.rows.failure:
                found.append(("input wait", timer.rows.failure, "report it"))
        return found

    def own_us(self) -> float:
        iterator = iter(tf.data.Dataset.range(1))

        def work(timeline: Timeline) -> tuple[Work, Work]:
            timer = FunctionTimer(
                Model(lambda given: None),
                "train_function",
                "eager",  # the graph's part is no Python
                called=timeline.called,
                no_batch=timeline.no_batch,
                stale=None,
                failed=lambda error: None,
            )
            return function_called(timer, iterator, iterator, inside=True)

        return hooks_us(work)

    def fit_facts(self) -> dict[str, Any]:
        strategy = getattr(self._model, "_distribute_strategy", None)
        return {
            "strategy": type(strategy).__name__ if strategy is not None else None,
            "replicas": tensorflow_distribute.replicas(self._model),
            "op_determinism": self._deterministic,
        }


def adapter() -> TensorFlowAdapter:
    """A fresh adapter for one fit."""
    return TensorFlowAdapter()
