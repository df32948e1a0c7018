"""In a child: begins before the program's first line, and keeps the program from changing files.

`activate` is called by a `sitecustomize` that the runner puts into the child's path (`children.py`).
"""

import atexit
import itertools
import json
import os
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

from .hooks import CREATED, FILLED, Hooks
from .meter import Meter

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CREATES = (CREATED, FILLED, "os.mkdir", "sqlite3.connect")  # audit events that change nothing that is there
# Audit event -> places of its paths.
_PATH_ARGUMENTS: dict[str, tuple[int, ...]] = {"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)}
_PATH_ARGUMENTS |= dict.fromkeys((*_CREATES, "os.remove", "os.truncate", "os.rmdir", "shutil.rmtree"), (0,))
_IN_OPEN_FOLDER = ("os.remove", "os.rmdir", "os.rename")  # whose last argument is one, -1 = none


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
        self._cwd = plan["here"]
        recorded = plan.get("record") or plan["folder"]
        home = os.path.expanduser("~")  # noqa: PTH111 - no home is no error
        # Beginnings of paths.
        folders = (str(self._folder), recorded, sys.prefix, sys.base_prefix)
        self._ignored = (*folders, "/dev/", "/proc/", "/sys/", f"{home}/.")
        self._temporary = plan["temporary"]
        self._inside = threading.local()

    def __call__(self, event: str, args: tuple) -> None:
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & _WRITE_FLAGS
            paths = (path,) if writes else ()
        elif event in ("tempfile.mkstemp", "tempfile.mkdtemp"):  # raised before each try of a random name
            if not os.path.lexists(args[0]):
                self._note("filled", os.path.abspath(os.fsdecode(args[0])))  # noqa: PTH100 - links are kept
            return
        elif event in _IN_OPEN_FOLDER and args[-1] != -1:  # within `shutil.rmtree`, which raised its own
            return
        else:
            paths = tuple(args[place] for place in _PATH_ARGUMENTS.get(event, ()))
        if paths and not getattr(self._inside, "on", False):
            self._inside.on = True
            try:
                for path in paths:
                    self._check_path(path, event)
            finally:
                self._inside.on = False

    def _check_path(self, path: Any, event: str) -> None:
        """End the program if it changes what was there before; list what it creates."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are kept
        temporary = full.startswith(self._temporary) and not full.startswith(self._cwd)
        if full.startswith(self._ignored) or temporary or "__pycache__" in full:
            return
        if not os.path.lexists(full):
            absent = [full, *itertools.takewhile(lambda parent: not parent.exists(), Path(full).parents)]
            for each in reversed(absent):
                self._note("made", str(each))
            if event in (FILLED, "os.rename"):  # a folder is renamed with all in it
                self._note("filled", full)
        elif event not in _CREATES and (event != "open" or Path(full).is_file()) and not self._is_own(full):
            self._meter.fail(f"it changes {os.path.relpath(full, self._cwd)}, which is there already: give --copy")
            os._exit(1)

    def _is_own(self, path: str) -> bool:
        """Return whether the program made a file or folder, or a folder around it that it filled."""
        own, filled = (set(listed(self._folder / name)) for name in ("made", "filled"))
        return path in own or not filled.isdisjoint((path, *map(str, Path(path).parents)))

    def _note(self, name: str, path: str) -> None:
        """Add a path to a list, of single files and folders (`made`) or of folders with all in them (`filled`)."""
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(path + "\n")


def listed(path: Path) -> list[str]:
    """Return the paths in a list of `Guard`'s; [] where there is none."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
