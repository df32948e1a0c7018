"""Changes to modules as they are imported, and to lists of callbacks, by `run` and `try`; standard library alone."""

import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


def spec_followed_by(action: Callable[[types.ModuleType], None], own_finder: object, *asked: Any) -> ModuleSpec | None:
    """Return the spec that the other finders have for a module; once it is imported, `action` gets the module.

    Args:
        own_finder: who calls this, as its own `find_spec` was asked.
        asked: the arguments of that call: name, path and target.
    """
    specs = (finder.find_spec(*asked) for finder in sys.meta_path if finder is not own_finder)
    spec = next((spec for spec in specs if spec is not None), None)
    if spec is not None and spec.loader is not None:
        loader, load = spec.loader, spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            del loader.__dict__["exec_module"]
            load(module)
            action(module)

        loader.__dict__["exec_module"] = exec_module
    return spec


def put_first(callbacks: Any, callback: Any) -> None:
    """Add a callback before the others of a Keras list, which may have asked its callbacks for their hooks already."""
    callback.set_params(callbacks.params)
    callback.set_model(callbacks.model)
    callbacks.callbacks.insert(0, callback)
    for name in ("_should_call_train_batch_hooks", "_should_call_test_batch_hooks"):
        if hasattr(callbacks, name):  # of tf_keras
            setattr(callbacks, name, True)
