"""Remedies: a few sentences and the line of code, in terms of the run's own framework.

A file of remedies is loaded when something of it is first used: a run without findings loads none.
"""

from importlib import import_module
from pkgutil import iter_modules


class _Unloaded:
    """Stand-in for a module of this package that imports it when an attribute is first read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str):
        return getattr(import_module(self._name), attribute)


globals().update({module.name: _Unloaded(f"{__name__}.{module.name}") for module in iter_modules(__path__)})
