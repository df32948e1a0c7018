"""`ceilings`: times the input alone and the model alone, and leaves both as they were."""

from __future__ import annotations

import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from types import FunctionType, MethodType
from typing import Any

from gpu_util_callback.backends.adapters import framework_in_use
from gpu_util_callback.backends.base import framework_module, runtime_of
from gpu_util_callback.backends.copies import Preserved, independent
from gpu_util_callback.report.ceilings import Ceilings, Instead
from gpu_util_callback.steps.frames import calling_fit

# Of the time: input alone, both together, model alone.
_SHARES = (0.4, 0.3, 0.3)
_TURNS = 2  # of two inputs: a moment at which the machine did something else shows
_WARM_SHARE = 0.2  # of a part, before its rate is taken: buffers fill, settings are tuned
_WARM_STEPS = 2  # the first compiles
_LEAST_STEPS = 2  # to take a rate from, however long they last
_MANY = 10**9


def ceilings(
    model: object = None,
    data: object = None,
    y: object = None,
    *,
    instead: object = None,
    step: Callable[..., object] | None = None,
    seconds: float = 10.0,
    state: object = (),
    batch_size: int | None = None,
    sample_weight: object = None,
    class_weight: dict | None = None,
    shuffle: bool = True,
    progress: bool = True,
) -> Ceilings:
    """Measure how fast input and model could be, each without the other.

    Three things are timed: the input alone, both together as training does them, and the model
    alone on one batch that is kept. Afterwards nothing has changed: weights, optimizer variables,
    metrics, random numbers and the position of datasets are put back bit for bit, also after
    Ctrl+C or an error. A model that is not built yet is built, as by `fit`. `y`, `batch_size`,
    `sample_weight`, `class_weight` and `shuffle` are as for `fit`.

    Args:
        model: a compiled Keras model; not with `step`.
        data: what `fit` takes as `x`: a dataset, arrays, a `PyDataset`, a torch `DataLoader`; or,
            with `step`, anything to iterate over. A function without arguments is called for a
            fresh one: the way for generators, which can be iterated over only once.
        instead: another input for the same model, such as a changed one that should be faster: it
            is measured as well, after a first pass over it if that ends within `seconds` (caches
            are full then), and the gain is printed. Arrays as `(x, y)`; else as `data`.
        step: a loop's own training step, called with a batch.
        seconds: to measure for, three times as long with `instead`. Compilation and the wait for a
            first batch are extra.
        state: with `step`: objects that it changes and that it does not refer to by itself. What
            its function, closure and globals refer to is found: modules, optimizers, variables,
            arrays.
        progress: print what is being measured.

    Returns:
        The rates, which of both is the ceiling, and what fixing the other could gain at most:
        readable when printed and in a notebook; `to_dict()` has the numbers.

    Raises:
        TypeError, ValueError: the arguments cannot be measured; the message says what to do.

    Example:

    ```python
    print(ceilings(model, dataset))
    print(ceilings(model, dataset, instead=dataset.cache()))  # does the change help?
    print(ceilings(step=train_step, data=loader))       # a loop of your own
    print(ceilings(model, lambda: make_batches()))      # a generator
    ```
    """
    if data is None:
        raise TypeError("data is missing: ceilings(model, dataset) or ceilings(step=…, data=…)")
    if (model is None) == (step is None):
        raise TypeError("give either a Keras model or step=, a function called with a batch")
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds!r}")
    say = _Progress(progress)
    began = time.perf_counter()
    try:
        if step is not None:
            measured = _of_loop(step, data, instead, state, seconds, say)
        else:
            fit = {
                "y": y,
                "sample_weight": sample_weight,
                "batch_size": batch_size,
                "class_weight": class_weight,
                "shuffle": None if shuffle else False,
            }
            measured = _of_model(model, data, instead, fit, seconds, say)
    finally:
        say.end()
    return replace(measured, seconds=round(time.perf_counter() - began, 3))


class _Progress:
    """One line on the console that says what is being measured."""

    def __init__(self, enabled: bool):
        self._enabled = enabled
        self._has_printed = False

    def __call__(self, part: str) -> None:
        if self._enabled:
            print(f"\rgpu-util: measuring {part:<30}", end="", file=sys.stderr, flush=True)
            self._has_printed = True

    def end(self) -> None:
        if self._has_printed:
            print(file=sys.stderr, flush=True)


class _Clock:
    """The rate of steps over a stretch of time, its beginning left out.

    Args:
        seconds: to measure for.
        wait: waits for all that was launched, given a step's result.
        pass_s: seconds to wait for the end of a first pass over the data, which fills caches.
    """

    def __init__(self, seconds: float, wait: Callable[[object], None], pass_s: float = 0.0):
        self._seconds = seconds
        self._wait = wait
        self._pass_s = pass_s
        self.passed = not pass_s  # the first pass was over before the rate was taken
        self._first: float | None = None
        self._start: float | None = None
        self._calls = self._steps = 0
        self._paused: float | None = None
        self._began: float | None = None  # of the measurement, with its pauses
        self._since = 0  # steps since then
        self.rate: float | None = None

    def ticked(self, steps: int, result: object) -> bool:
        """Count steps that are done; return whether it is enough."""
        self._calls += 1
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        if self._start is None:
            lasted = now - self._first
            warm = lasted >= _WARM_SHARE * self._seconds
            warm &= self.passed or lasted >= self._pass_s
            if self._calls >= _WARM_STEPS and warm:
                self._wait(result)
                self._start = self._began = time.perf_counter()
                self._paused = None
            return False
        self._since += steps
        if self._paused is not None:  # the first step after a pause waited for its end
            self._wait(result)
            self._start += time.perf_counter() - self._paused
            self._paused = None
            return self._is_all_pauses()
        self._steps += steps
        if self._steps >= _LEAST_STEPS and now - self._start >= self._seconds:
            self._wait(result)
            self.rate = self._steps / (time.perf_counter() - self._start)
            return True
        return False

    def _is_all_pauses(self) -> bool:
        """Return whether no step follows another, and count pauses in, then: they are the pace."""
        assert self._began is not None
        lasted = time.perf_counter() - self._began
        if self._steps or self._since < _LEAST_STEPS or lasted < self._seconds:
            return False
        self.rate = self._since / lasted
        return True

    def pause(self) -> None:
        """Leave out the time from now to the next step: the data begin again."""
        self.passed |= self._start is None
        if self._start is not None and self._paused is None:
            self._paused = time.perf_counter()


def _refuse_workers(framework: str) -> None:
    if runtime_of(framework).processes() > 1:
        raise ValueError(
            "several processes train together: each would have to do the same steps; measure in "
            "one process, before they join"
        )


@dataclass(frozen=True)
class _Parts:
    """The parts of a training, each of which runs until a clock has its rate.

    Attributes:
        alone: reads an input alone; returns its batches a second and its first batch.
        prepare: makes the model ready, given a batch.
        together: trains with an input; returns steps a second.
        model_alone: trains with one batch again and again; returns steps a second.
        wait: waits for all that was launched, given a step's result.
    """

    alone: Callable[[object, _Clock], tuple[float, object]]
    prepare: Callable[[object], None]
    together: Callable[[object, _Clock], float]
    model_alone: Callable[[object, _Clock], float]
    wait: Callable[[object], None]


def _measure(parts: _Parts, data: object, instead: object, seconds: float, say: Callable[[str], None]) -> Ceilings:
    """Time each part; with another input, that one and the first in turns."""
    alone_s, together_s, model_s = (share * seconds for share in _SHARES)
    say("the input alone")
    alone, batch = parts.alone(data, _Clock(alone_s, parts.wait))
    parts.prepare(batch)
    say("both together")
    together = [parts.together(data, _Clock(together_s, parts.wait))]
    other = None
    if instead is not None:
        say("the other input alone")
        other_alone, other_batch = parts.alone(instead, _Clock(alone_s, parts.wait, seconds))
        rates = []
        for _ in range(_TURNS):
            say("the other input and the model")
            clock = _Clock(together_s, parts.wait, seconds)
            rates.append(parts.together(instead, clock))
            say("both together again")
            together.append(parts.together(data, _Clock(together_s, parts.wait)))
        other = Instead(
            other_alone, (min(rates), max(rates)), (min(together), max(together)), _size(other_batch), clock.passed
        )
    say("the model alone")
    steps = parts.model_alone(batch, _Clock(model_s, parts.wait))
    return Ceilings(alone, steps, median(together), _size(batch), instead=other)


# ---- a Keras model -----------------------------------------------------------------------------


def _of_model(
    model: object, data: object, instead: object, fit: dict[str, object], seconds: float, say: Callable[[str], None]
) -> Ceilings:
    import keras

    framework = keras.backend.backend()
    if not isinstance(model, keras.Model):
        raise TypeError(f"a Keras 3 model is needed, got {type(model).__name__}; or give step=")
    if not getattr(model, "compiled", False):
        raise ValueError("the model is not compiled: call model.compile(...) first")
    _refuse_workers(framework)
    with Preserved() as preserved:
        preserved.random_numbers()
        _preserve_data(preserved, data)
        _preserve_data(preserved, instead)

        def alone(input_: Any, clock: _Clock) -> tuple[float, object]:
            idle = _idle_model()
            data, arguments = input_
            return _fit_rate(idle, data, arguments, clock), idle.first_batch

        def prepare(batch: object) -> None:
            preserved.state(*model.variables)  # before anything is built
            _build(model, batch)
            preserved.state(model, *_global_seeds())

        def together(input_: Any, clock: _Clock) -> float:
            model.train_function = None  # with operations of its own: not the training's state
            data, arguments = input_
            return _fit_rate(model, data, arguments, clock)

        def model_alone(batch: object, clock: _Clock) -> float:
            options = {**dict.fromkeys(fit), "shuffle": False}  # the rest is in the batch already
            return _fit_rate(model, _repeated(framework, batch), options, clock, endless=True)

        parts = _Parts(alone, prepare, together, model_alone, runtime_of(framework).synchronize)
        other = None if instead is None else _as_fit_takes(instead, fit)
        return replace(_measure(parts, (data, fit), other, seconds, say), framework=framework)


def _as_fit_takes(instead: object, fit: dict[str, object]) -> tuple[object, dict[str, object]]:
    """Return the other input as `x`, and its other arguments of `fit`."""
    if isinstance(instead, tuple):
        x, y = instead
        return x, {**fit, "y": y}
    return instead, fit if fit["y"] is None else {**fit, "y": None, "sample_weight": None}


def _preserve_data(preserved: Preserved, data: object) -> None:
    """Preserve what iterating over a dataset changes in it."""
    if callable(data) and not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        return
    preserved.state(data)
    for name in ("generator", "sampler", "batch_sampler", "dataset"):  # of a torch DataLoader
        member = getattr(data, name, None)
        if type(data).__module__.startswith("torch.") and member is not None:
            preserved.state(member, getattr(member, "generator", None))


def _global_seeds() -> list[object]:
    """Return Keras' own source of seeds, if it was used."""
    try:
        from keras.src.backend.common import global_state

        seeds = global_state.get_global_attribute("global_seed_generator")
    except ImportError:  # private, and moved
        return []
    return [] if seeds is None else [seeds]


def _idle_model() -> Any:
    """Return a model that does nothing, so that `fit` only reads its input; it keeps a batch."""
    import keras

    class IdleModel(keras.Model):
        first_batch: object = None

        def train_step(self, *args: object) -> object:
            if self.first_batch is None:
                object.__setattr__(self, "first_batch", args[-1])
            logs = {"loss": keras.ops.zeros(())}  # TensorFlow needs some
            return (logs, args[0]) if args[1:] else logs

    idle = IdleModel()
    idle.compile(optimizer="sgd", run_eagerly=True)
    idle.built = True
    return idle


class _Enough(Exception):
    """Enough was measured."""


def _fit_rate(model: object, data: object, fit: dict[str, object], clock: _Clock, endless: bool = False) -> float:
    """Return the steps a second of `fit` on a copy of the data."""
    import keras

    class Stop(keras.callbacks.Callback):
        async_safe = True  # otherwise every step would wait for the device
        done = -1

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            self.done = -1

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            steps, self.done = batch - self.done, batch
            if clock.ticked(steps, logs):
                raise _Enough  # stopping by `stop_training` fails on JAX in some versions of Keras

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            clock.pause()

    input_ = data if endless else independent(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `fit` itself gives them to the user
            keras.Model.fit(
                model,
                input_,
                epochs=_MANY,
                verbose=0,
                callbacks=[Stop()],
                steps_per_epoch=_MANY if endless else None,
                **{name: value for name, value in fit.items() if value is not None},
            )
    except _Enough:
        assert clock.rate is not None
        return clock.rate
    raise ValueError("the data have no batch")


def _build(model: Any, batch: object) -> None:
    """Create the variables that a model has not got yet, without running it, as `fit` does."""
    batch = tuple(batch) if isinstance(batch, list) else batch
    model._symbolic_build(data_batch=batch)
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _repeated(framework: str, batch: object) -> object:
    """Return one batch as input without an end, made at no cost."""
    if framework == "tensorflow":
        return framework_module(framework, "runtime").repeated(batch)
    import keras

    def on_host(value: object) -> object:
        return None if value is None else keras.ops.convert_to_numpy(value)

    host_batch = keras.tree.map_structure(on_host, batch)
    if isinstance(host_batch, (list, tuple)):
        host_batch = keras.utils.pack_x_y_sample_weight(*host_batch)
    return (host_batch for _ in range(_MANY))


def _size(batch: object) -> int | None:
    """Return the samples of a batch: the first dimension of its first tensor."""
    while isinstance(batch, (list, tuple, dict)) and len(batch):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    try:
        return int(shape[0]) if shape is not None and len(shape) else None
    except (TypeError, ValueError):
        return None


# ---- a loop of one's own -----------------------------------------------------------------------


def _of_loop(
    step: Callable[..., object],
    data: object,
    instead: object,
    state: object,
    seconds: float,
    say: Callable[[str], None],
) -> Ceilings:
    framework = framework_in_use() or ""
    _refuse_workers(framework)
    with Preserved() as preserved:
        preserved.random_numbers()
        _preserve_data(preserved, data)
        _preserve_data(preserved, instead)
        preserved.state(step, *(state if isinstance(state, (list, tuple)) else (state,)))

        def alone(batches: object, clock: _Clock) -> tuple[float, object]:
            first: list[object] = []

            def keep(batch: object) -> None:
                if not first:
                    first.append(batch)

            return _loop_rate(keep, _passes(batches), clock), first[0]

        def together(batches: object, clock: _Clock) -> float:
            return _loop_rate(step, _passes(batches), clock)

        def model_alone(batch: object, clock: _Clock) -> float:
            return _loop_rate(step, ([batch] * 1000 for _ in range(_MANY)), clock)

        parts = _Parts(alone, lambda batch: None, together, model_alone, runtime_of(framework).synchronize)
        return replace(_measure(parts, data, instead, seconds, say), framework=framework)


def _passes(data: object) -> Iterator[Iterable]:
    """Yield the same copy of the data forever, or a new one each time if a function makes it."""
    copied = None if isinstance(data, (FunctionType, MethodType)) else independent(data)
    while True:
        yield independent(data) if copied is None else copied


def _loop_rate(step: Callable[..., object], passes: Iterator[Iterable], clock: _Clock) -> float:
    for batches in passes:
        empty = True
        for batch in batches:
            empty = False
            if clock.ticked(1, step(batch)):
                assert clock.rate is not None
                return clock.rate
        if empty:
            raise ValueError("the data have no batch")
        clock.pause()
    raise AssertionError("passes have no end")


# ---- before a recorded fit ---------------------------------------------------------------------


def before_fit(model: object, seconds: float, report: bool) -> dict[str, object]:
    """Measure the ceilings of the `fit` that is calling; return `Ceilings.to_dict()`.

    Raises: as `ceilings`.
    """
    frame = calling_fit()
    if frame is None:
        raise ValueError("the call of fit could not be found")
    arguments = frame.f_locals
    if report:
        about = f"{seconds:g} s before training, and compilation takes more (ceilings=)"
        print(f"gpu-util: measuring input and model, each alone, for {about}", file=sys.stderr)
    measured = ceilings(
        model,
        arguments["x"],
        arguments.get("y"),
        sample_weight=arguments.get("sample_weight"),
        batch_size=arguments.get("batch_size"),
        class_weight=arguments.get("class_weight"),
        shuffle=bool(arguments.get("shuffle", True)),
        seconds=seconds,
        progress=report,
    )
    if report:
        print(textwrap.indent(str(measured), "gpu-util: "), file=sys.stderr, flush=True)
    return measured.to_dict()
