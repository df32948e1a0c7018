"""Python functions that a tf.data pipeline calls, timed in TensorFlow's registry of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tensorflow.python.ops import script_ops

from gpu_util_callback.backends.input_calls import InputCalls, called

_OURS = "_gpu_util_timed"  # on what we put in place
_LIBRARIES = ("tensorflow.", "keras.", "tf_keras.")
_AUTOGRAPH = "tensorflow.python.autograph.impl.api"
_NEXT = "generator_py_func"  # of `from_generator`: makes an element


def time_functions(tokens: Iterable[str], calls: InputCalls) -> None:
    """Time these entries of the registry for the time of the fit; on any thread.

    The registry is private to TensorFlow: where it is not as expected, nothing is timed.
    """
    entries: Any = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", None)
    eager = getattr(script_ops, "EagerFunc", None)
    if not hasattr(entries, "get") or eager is None:
        return
    for token in tokens:
        entry = entries.get(token)
        function = entry._func if isinstance(entry, eager) else entry
        own = _users_own(function)
        if own is None or hasattr(function, _OURS):
            continue
        timed = calls.timer(*called(own)).around(function)
        setattr(timed, _OURS, True)
        if isinstance(entry, eager):
            calls.replace_attribute(entry, "_func", timed)
        else:
            _replace_entry(entries, token, function, timed, calls)


def _replace_entry(entries: Any, token: str, function: Callable, timed: Callable, calls: InputCalls) -> None:
    def put() -> None:
        entries[token] = timed  # a weak reference: `back` keeps it alive

    def back() -> None:
        if entries.get(token) is timed:
            entries[token] = function

    calls.replace(put, back)


def _users_own(function: object) -> Callable | None:
    """Return the user's function behind an entry; None for those of the frameworks themselves.

    For an element of `from_generator` it is the generator's function.
    """
    inner: object = inspect.unwrap(function) if callable(function) else None
    if getattr(inner, "__module__", None) == _AUTOGRAPH:  # around what is no function
        inner = _closure_variable(inner, "func")
    if getattr(inner, "__name__", "") == _NEXT:
        inner = getattr(_closure_variable(inner, "generator_state"), "_generator", None)
    home = getattr(inner, "__module__", None) or ""
    return None if not callable(inner) or home.startswith(_LIBRARIES) else inner


def _closure_variable(function: Any, name: str) -> object:
    """Return the variable of that name that a nested function refers to; None without it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None
