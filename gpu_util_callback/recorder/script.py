"""Which script this process runs: so that the next run of the same one is known as such."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any

from gpu_util_callback.recording.redaction import hashed_script

__all__ = ["script_name"]


def script_name(*, redact: bool = False, main: Any = None) -> str | None:
    """`"train.py"`, or `"package.train"` for `python -m package.train`, without its folder.

    Args:
        redact: a stable stand-in for the name, by which it is still recognised as the same.
        main: the main module; None = this process's.

    Returns: None where there is no script: a notebook, a console, `python -c`.
    """
    main = sys.modules.get("__main__") if main is None else main
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    if hasattr(main, "get_ipython"):
        return None
    if spec is not None and getattr(spec, "name", None):
        name = str(spec.name).removesuffix(".__main__")
    elif file:
        name = PurePath(file).name
    else:
        return None
    return hashed_script(name) if redact else name
