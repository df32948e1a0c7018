"""State, random numbers and datasets that a trial run changes: saved, and restored afterwards."""

from __future__ import annotations

import copy
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeGuard

import numpy as np

from gpu_util_callback.backends.base import BACKENDS, Runtime, framework_module, runtime_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set)
# Attributes larger than this are shared with the copy: they are data, not state.
_LARGEST_BYTES, _LONGEST = 16 << 20, 100_000
_MOST_OBJECTS = 200_000
# Packages whose objects are not looked into, but for Keras' layers, optimizers, metrics and losses.
_FOREIGN = {"keras", "tensorflow", "jax", "jaxlib", "torch", "numpy", "gpu_util_callback", *sys.stdlib_module_names}


class Preserved:
    """A block after which all that was put under its care is as before, bit for bit.

    However it ends: an error or Ctrl+C passes after everything has been put back, and a Ctrl+C
    meanwhile waits for that.

    Example:

    ```python
    with Preserved() as preserved:
        preserved.random_numbers()
        preserved.state(model)
        model.fit(...)
    ```
    """

    def __init__(self) -> None:
        self._restore: list[Callable[[], None]] = []
        self._visited: dict[int, object] = {}  # by id; holding an object keeps its id its own

    def __enter__(self) -> Preserved:
        return self

    def __exit__(self, *_: object) -> None:
        with _undisturbed():
            problem: Exception | None = None
            for restore in reversed(self._restore):
                try:
                    restore()
                except Exception as error:  # the others are restored nevertheless
                    problem = problem or error
            if problem is not None:
                raise problem

    def random_numbers(self) -> None:
        """Preserve the global random states of Python, NumPy, and the frameworks in use."""
        state = random.getstate()
        self._restore.append(lambda: random.setstate(state))
        numbers = np.random.get_state()
        self._restore.append(lambda: np.random.set_state(numbers))
        self._restore += [restore for runtime in _runtimes() for restore in runtime.random_states()]

    def state(self, *roots: object) -> None:
        """Preserve all that objects hold: variables, tensors, attributes, containers.

        Of a function it is what it refers to: its closure, global variables, the object that it is
        bound to.
        """
        waiting = deque(roots)
        while waiting and len(self._visited) < _MOST_OBJECTS:
            value = waiting.popleft()
            if isinstance(value, _PLAIN) or id(value) in self._visited:
                continue
            self._visited[id(value)] = value
            waiting.extend(self._keep(value))

    def _keep(self, value: object) -> Iterator[object]:
        """Preserve an object; yield what it holds."""
        if self._keep_in_framework(value):
            return
        if isinstance(value, np.ndarray):
            self._keep_array(value)
        elif isinstance(value, _CONTAINERS):
            yield from self._keep_container(value)
        elif isinstance(value, MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, FunctionType):
            yield from self._keep_names(value)
        elif hasattr(value, "func") and hasattr(value, "args") and hasattr(value, "keywords"):
            yield from (value.func, value.args, value.keywords)  # functools.partial
        elif isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
            self._keep_generator(value)
        elif _is_variable(value):
            self._keep_variable(value)
        elif hasattr(value, "python_function"):  # tf.function, which is wrapped, too
            self._restore.append(framework_module("tensorflow", "runtime").untraced(value))
            yield value.python_function
        elif hasattr(value, "__wrapped__") and callable(value):  # jax.jit, functools.wraps
            yield value.__wrapped__
        elif _has_state_dict(value):
            saved = copy.deepcopy(value.state_dict())
            self._restore.append(lambda: value.load_state_dict(saved))
        elif _is_looked_into(value):
            yield from self._keep_attributes(value)

    def _keep_array(self, array: np.ndarray) -> None:
        if array.flags.writeable and array.nbytes <= _LARGEST_BYTES:
            saved = array.copy()
            self._restore.append(lambda: np.copyto(array, saved))

    def _keep_container(self, container: list | tuple | dict | set) -> Iterator[object]:
        if isinstance(container, dict):
            pairs = dict(container)
            self._restore.append(lambda: _refill(container, pairs))
            yield from pairs.values()
            return
        members_before = list(container) if len(container) <= _LONGEST else []
        if isinstance(container, list) and len(container) <= _LONGEST:
            self._restore.append(lambda: _refill_list(container, members_before))
        elif isinstance(container, set):
            members = set(members_before)
            self._restore.append(lambda: _refill_set(container, members))
        yield from members_before

    def _keep_names(self, function: FunctionType) -> Iterator[object]:
        """Preserve the values and the bindings of the names that a function uses."""
        names = function.__globals__
        for name in function.__code__.co_names:
            if name in names:
                value = names[name]
                self._restore.append(_rebinding(names, name, value))
                yield value
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._restore.append(_rebinding_cell(cell, value))
            yield value
        yield from function.__defaults__ or ()

    def _keep_generator(self, generator: random.Random | np.random.Generator | np.random.RandomState) -> None:
        if isinstance(generator, random.Random):
            state = generator.getstate()
            self._restore.append(lambda: generator.setstate(state))
        elif isinstance(generator, np.random.Generator):
            inner = copy.deepcopy(generator.bit_generator.state)
            self._restore.append(lambda: setattr(generator.bit_generator, "state", inner))
        else:
            numbers = generator.get_state()
            self._restore.append(lambda: generator.set_state(numbers))

    def _keep_in_framework(self, value: object) -> bool:
        """Preserve an object that one of the frameworks knows; return False for any other."""
        for runtime in _runtimes():
            restore = runtime.preserved(value)
            if restore is not None:
                self._restore.append(restore)
                return True
        return False

    def _keep_variable(self, variable: Any) -> None:
        """Preserve the value of a Keras variable: a copy, since training may reuse its memory."""
        from keras import ops

        tensor = getattr(variable, "_value", variable)
        if tensor is None or self._keep_in_framework(tensor):
            return
        value = np.array(ops.convert_to_numpy(variable), copy=True)
        self._restore.append(lambda: variable.assign(value))

    def _keep_attributes(self, owner: object) -> Iterator[object]:
        names = vars(owner)
        bound = dict(names)
        self._restore.append(lambda: _refill(names, bound))
        yield from bound.values()


def _refill(mapping: dict, pairs: dict) -> None:
    """Bind the names of a dictionary as before, and no others."""
    for name in [name for name in mapping if name not in pairs]:
        dict.__delitem__(mapping, name)
    for name, value in pairs.items():
        if mapping.get(name) is not value:
            dict.__setitem__(mapping, name, value)


def _refill_list(target: list, items: list) -> None:
    if len(target) != len(items) or any(a is not b for a, b in zip(target, items, strict=True)):
        list.__setitem__(target, slice(None), items)


def _refill_set(target: set, members: set) -> None:
    target.clear()
    target.update(members)


def _rebinding(names: dict, name: str, value: object) -> Callable[[], None]:
    again = _again(value)
    return lambda: names.__setitem__(name, again())


def _rebinding_cell(cell: object, value: object) -> Callable[[], None]:
    again = _again(value)
    return lambda: setattr(cell, "cell_contents", again())


def _again(value: object) -> Callable[[], object]:
    """Return a function that returns a value as it is now, even where training gave it away."""
    for runtime in _runtimes():
        restore = runtime.immutable(value)
        if restore is not None:
            return restore
    return lambda: value


def _runtimes() -> list[Runtime]:
    """Return the frameworks that are imported."""
    return [runtime_of(name) for name in BACKENDS if name in sys.modules]


def _is_variable(value: object) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Variable)


class _Stateful(Protocol):
    """An object with a state that can be read and put back, as modules and optimizers of PyTorch have."""

    def state_dict(self) -> dict: ...

    def load_state_dict(self, state_dict: dict) -> None: ...


def _has_state_dict(value: object) -> TypeGuard[_Stateful]:
    has_methods = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return has_methods and not hasattr(value, "named_buffers") and not isinstance(value, type)


def _is_looked_into(value: object) -> bool:
    if isinstance(value, type) or not hasattr(value, "__dict__") or not isinstance(vars(value), dict):
        return False
    if type(value).__module__.partition(".")[0] not in _FOREIGN:
        return True
    keras = sys.modules.get("keras")
    kinds: tuple[type, ...] = ()
    if keras is not None:
        kinds = (
            keras.layers.Layer,
            keras.optimizers.Optimizer,
            keras.optimizers.schedules.LearningRateSchedule,
            keras.metrics.Metric,
            keras.losses.Loss,
            keras.random.SeedGenerator,
        )
    return isinstance(value, kinds) or hasattr(value, "named_buffers")  # torch modules


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off a Ctrl+C until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    if before is not None:
        signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def independent(data: Any) -> Any:
    """Return a copy of a dataset whose iteration leaves the dataset itself as it is.

    Raises:
        ValueError: it can be iterated over only once, or cannot be copied.
    """
    for runtime in _runtimes():
        copied = runtime.copied(data)
        if copied is not None:
            return copied
    if hasattr(data, "__next__"):
        kind = type(data).__name__
        raise ValueError(
            f"a {kind} can be iterated over only once: measuring would use up its batches; pass a "
            "function that makes it, such as lambda: make_batches()"
        )
    if isinstance(data, (FunctionType, MethodType)):
        return data()
    if isinstance(data, (np.ndarray, *_CONTAINERS)) or not hasattr(data, "__dict__"):
        return data
    other = copy.copy(data)
    for name, value in vars(data).items():
        if _is_small(value):
            try:
                vars(other)[name] = copy.deepcopy(value)
            except Exception:  # a lock, a file: shared
                continue
    for hook in ("on_epoch_begin", "on_epoch_end"):  # of a PyDataset: they change what they share
        if hasattr(data, hook):
            vars(other)[hook] = lambda: None
    return other


def _is_small(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.nbytes <= _LARGEST_BYTES
    if isinstance(value, _CONTAINERS):
        return len(value) <= _LONGEST
    return isinstance(value, (random.Random, np.random.Generator, np.random.RandomState))
