"""Make this process look like one on Windows or macOS, as far as Python shows the difference.

There is no /proc and no /sys, no fork and nothing that belongs to it; what is imported later finds
none of it. Threads, processes and frameworks remain Linux's.
"""

import builtins
import io
import os
import time

# Where there is no /proc, psutil has other means; here it shall be as helpless as can be.
import psutil  # noqa: F401

ABSENT = ("fork", "forkpty", "register_at_fork", "sched_getaffinity", "nice", "getloadavg", "O_NONBLOCK")
HIDDEN = ("/proc", "/sys")


def _hidden(path) -> bool:
    try:
        text = os.fsdecode(path)
    except TypeError:  # a file descriptor
        return False
    return text in HIDDEN or text.startswith(tuple(f"{one}/" for one in HIDDEN))


def _without(function):
    def guarded(path=".", *arguments, **keywords):
        if _hidden(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **keywords)

    return guarded


def pretend() -> None:
    """Begin to look like another system."""
    for name in ABSENT:
        if hasattr(os, name):
            delattr(os, name)
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            delattr(time, name)
    for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink"):
        setattr(os, name, _without(getattr(os, name)))
    io.open = builtins.open = _without(io.open)
