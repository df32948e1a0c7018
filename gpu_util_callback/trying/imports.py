"""Modules that are changed or watched once the program imports them; standard library alone, as a child needs it."""

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
