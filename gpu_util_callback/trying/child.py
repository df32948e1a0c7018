"""In a child: begins before the program's first line, and keeps the program from changing files.

`activate` is called by a `sitecustomize` that the runner puts into the child's path (`children.py`).
"""

import atexit
import json
import os
import runpy
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from .hooks import Hooks
from .meter import Meter

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATH_ARGUMENTS = {"os.remove": (0,), "os.truncate": (0,), "os.rename": (0, 1)}  # audit event -> places of its paths


def activate(plan_path: str) -> None:
    """Watch this process by the plan in a file."""
    plan = json.loads(Path(plan_path).read_text())
    meter = Meter(plan)
    atexit.register(lambda: None if getattr(sys, "last_type", None) else meter.at_exit())  # no error ended the program
    sys.meta_path.insert(0, Hooks(plan, meter))
    sys.addaudithook(Guard(plan, meter))
    if plan["patch"]:
        try:
            runpy.run_path(plan["patch"])
        except BaseException as error:  # which `site` would ignore
            meter.fail(f"{Path(plan['patch']).name} failed: {type(error).__name__}: {error}".splitlines()[0])
            os._exit(1)


class Guard:
    """An audit hook: ends the program before it changes a file, and lists the files that it makes.

    Caches of libraries, below the home folder or the temporary one, are left to them. What `tempfile` made is listed:
    a program that is cut short removes none of it (TensorFlow keeps `__autograph_generated_file*.py` until its exit).
    """

    def __init__(self, plan: dict[str, Any], meter: Meter):
        self._meter = meter
        self._folder = Path(plan["folder"])
        self._created_list = self._folder / "made"  # a path each line, of files that the program created
        self._cwd = plan["here"]
        recorded = plan.get("record") or plan["folder"]
        home = os.path.expanduser("~")  # noqa: PTH111 - no home is no error
        # Beginnings of paths.
        folders = (str(self._folder), recorded, sys.prefix, sys.base_prefix)
        self._ignored = (*folders, "/dev/", "/proc/", "/sys/", f"{home}/.")
        self._temporary = tempfile.gettempdir()  # asked for here: it holds a lock
        self._inside = threading.local()

    def __call__(self, event: str, args: tuple) -> None:
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & _WRITE_FLAGS
            paths = (path,) if writes else ()
        elif event in ("tempfile.mkstemp", "tempfile.mkdtemp"):  # raised before each try of a random name
            if not os.path.lexists(args[0]):
                with (self._folder / "temporary").open("a", encoding="utf-8") as file:
                    file.write(os.path.abspath(os.fsdecode(args[0])) + "\n")  # noqa: PTH100 - links are kept
            return
        elif event in ("os.mkdir", *_PATH_ARGUMENTS):
            paths = tuple(args[place] for place in _PATH_ARGUMENTS.get(event, (0,)))
        else:
            return
        if paths and not getattr(self._inside, "on", False):
            self._inside.on = True
            try:
                for path in paths:
                    self._check_path(path)
            finally:
                self._inside.on = False

    def _check_path(self, path: Any) -> None:
        """End the program if it changes a file that was there before; list a file that it creates."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are kept
        temporary = full.startswith(self._temporary) and not full.startswith(self._cwd)
        if full.startswith(self._ignored) or temporary or "__pycache__" in full:
            return
        if Path(full).is_file():
            created = self._created_list.read_text(encoding="utf-8") if self._created_list.exists() else ""
            if full not in created.splitlines():
                self._meter.fail(f"it writes {os.path.relpath(full, self._cwd)}, which is there already: give --copy")
                os._exit(1)
        elif not os.path.lexists(full):
            with self._created_list.open("a", encoding="utf-8") as file:
                file.write(full + "\n")
