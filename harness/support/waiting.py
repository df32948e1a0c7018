"""Wait for what happens on another thread or in another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gpu_util_callback import read_recordings
from gpu_util_callback.recorder import outputs, recorder
from gpu_util_callback.recording.reader import Recording

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "it") -> T:
    """Call a condition until it is true; return what it returned."""
    end = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.02)
    return result


def newest(log_dir: str | Path, status: str, timeout_s: float = 20.0) -> Recording:
    """The newest recording of a log directory, once it has a status."""

    def found() -> Recording | None:
        return next((one for one in [*read_recordings(log_dir)][-1:] if one.status == status), None)

    return wait_until(found, timeout_s, f'a recording of status "{status}"')


def flush_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows written every tenth of a second."""
    for module in (recorder, outputs):
        monkeypatch.setattr(module, "FLUSH_S", 0.1)


def wait_for_recorders() -> None:
    """Wait until no recorder has a thread any more."""
    names = {"gpu-util-recorder", "gpu-util-writer"}
    wait_until(lambda: names.isdisjoint(thread.name for thread in threading.enumerate()), what="the end of its threads")
