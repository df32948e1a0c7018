"""Programs that a test runs in a process of their own."""

from __future__ import annotations

import subprocess
from typing import Any


def ran(*command: object, ends: int | None = 0, timeout: float = 300, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, which must end with this status (None: any), and return what it printed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **how)
    assert ends in (None, done.returncode), done.stdout[-3000:] + done.stderr[-4000:]
    return done
