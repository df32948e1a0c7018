"""Another program beside a benchmark, as on a machine that is shared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

COPIES = "import numpy as np; a = np.zeros(1 << 24); b = a.copy()\nwhile True: b[:] = a"


@contextmanager
def neighbour(wanted: bool = True) -> Iterator[None]:
    """Have another program copy memory meanwhile: it takes a core, its caches and the bus."""
    other = subprocess.Popen([sys.executable, "-c", COPIES]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()
