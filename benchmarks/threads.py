"""The processor time of a program's other Python threads, the recorder's among them."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

OURS = "gpu-util"  # how the names of our own threads begin
KNOWN = Path("/proc/self/schedstat").exists()


def other_threads_us(named: str = "") -> float:
    """Processor time of all Python threads but the training's: exact however busy the machine.

    Args:
        named: of these alone, by the beginning of their name.
    """
    main = threading.main_thread()
    spent = 0
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):  # it has just ended
            if thread is not main and thread.name.startswith(named):
                times = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                spent += int(times.split()[0])
    return spent / 1e3
