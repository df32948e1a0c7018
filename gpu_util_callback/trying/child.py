"""In a child: begins before the program's first line, and keeps the program from changing files.

`activate` is called by a `sitecustomize` that the runner puts into the child's path (`children.py`).
"""

import atexit
import errno
import json
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

from .hooks import Hooks
from .meter import Meter

KEPT = "gpu-util keeps it as it is"  # in errors of a program that changes what it must not
MOST_OWN_BYTES = 2**26  # of a file that is copied once the program writes into it: a tenth of a second
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FOLLOWS_LINKS = ("open", "os.truncate", "sqlite3.connect")  # audit events
_CREATES = ("open", "os.mkdir", "os.link", "os.symlink", "os.rename")
# Audit event -> places of its paths.
_PATH_ARGUMENTS: dict[str, tuple[int, ...]] = {"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)}
_PATH_ARGUMENTS |= dict.fromkeys(("os.mkdir", *_FOLLOWS_LINKS, "os.remove", "os.rmdir", "shutil.rmtree"), (0,))
_IN_OPEN_FOLDER = ("os.remove", "os.rmdir", "os.rename")  # whose last argument is one, -1 = none


def activate(plan_path: str) -> None:
    """Watch this process by the plan in a file (see `Children._start`), and run the plan's patch before its program.

    A patch that fails ends the process, with the reason as its result.
    """
    plan = json.loads(Path(plan_path).read_text())
    meter = Meter(plan)
    atexit.register(lambda: None if getattr(sys, "last_type", None) else meter.at_exit())  # no error ended the program
    sys.meta_path.insert(0, Hooks(plan, meter))
    sys.addaudithook(Guard(plan))
    if plan["patch"]:
        try:
            runpy.run_path(plan["patch"])
        except BaseException as error:  # which `site` would ignore
            meter.fail(f"{Path(plan['patch']).name} failed: {type(error).__name__}: {error}".splitlines()[0])
            os._exit(1)


class Guard:
    """An audit hook: keeps Python from changing files elsewhere than the kernel would, where it would not, and says so.

    A link of the working copy becomes a file of its own where the program writes into it, unless it is a large one.
    """

    def __init__(self, plan: dict[str, Any]):
        self._writable = tuple(f"{folder}{os.sep}" for folder in plan["writable"])
        self._copy = plan["folder"]

    def __call__(self, event: str, args: tuple) -> None:
        is_inner = event in _IN_OPEN_FOLDER and args[-1] != -1  # within `shutil.rmtree`, which raised its own
        if is_inner or (event == "open" and not (args[2] or 0) & _WRITE_FLAGS):
            return
        for path in (args[place] for place in _PATH_ARGUMENTS.get(event, ())):
            if isinstance(path, (str, bytes, os.PathLike)):  # no file descriptor
                self._check_path(Path(os.path.abspath(os.fsdecode(path))), event)  # noqa: PTH100 - links are kept

    def _check_path(self, path: Path, event: str) -> None:
        """Raise PermissionError if the program is about to change something that it must not."""
        is_written = event in _FOLLOWS_LINKS
        # Writing follows a link in the last place; renaming or removing does not.
        real = path.resolve() if is_written else path.parent.resolve() / path.name
        if f"{real}{os.sep}".startswith(self._writable):
            return
        is_link = is_written and path.is_symlink() and str(path).startswith(self._copy)
        # A small file that the copy links to: the copy gets its own.
        if is_link and real.is_file() and real.stat().st_size <= MOST_OWN_BYTES:
            path.unlink()
            shutil.copy2(real, path)
        elif event in _CREATES or (event != "sqlite3.connect" and os.path.lexists(path)):
            raise PermissionError(errno.EACCES, KEPT, str(path))
