"""The schedule on which the input pipeline's stages are read, and their rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_util_callback.backends.base import Adapter
from gpu_util_callback.recorder.messages import reason_of
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.schema import TABLES

__all__ = ["PipelineReadings"]

SELDOM_S = 10.0
DEADLINE_S = 2.0  # answering takes the framework's own locks; the recording must not wait


class PipelineReadings:
    """Readings of the adapter's pipeline: early in a short run, rare in a long one.

    Args:
        adapter: the framework's.
        clock: the recording's.
        fail: called with (source, reason, cure) when the stages cannot be read; not retried.
    """

    def __init__(self, adapter: Adapter, clock: Clock, fail: Callable[[str, str, str], None]):
        self._adapter = adapter
        self._clock = clock
        self._fail = fail
        self._works = True
        self._next = 0.0
        self._readings = 0

    def read(self, steps: int, last: bool) -> dict[str, np.ndarray] | None:
        """Return rows of the `pipeline` table, if a reading is due and there is something to read.

        Args:
            steps: training steps so far.
            last: whether there will be no later reading.
        """
        now = time.monotonic()
        if (
            not self._works
            or not self._adapter.has_stages
            or not steps
            or (now < self._next and not last)
        ):
            return None
        self._next = now + min(SELDOM_S, 1 + self._readings)
        self._readings += 1
        try:
            rows = self._in_time()
        except TimeoutError:
            self._works = False
            self._fail("pipeline", f"its stages could not be read within {DEADLINE_S:g} s", "")
            return None
        except Exception as error:
            self._works = False
            self._fail(
                "pipeline",
                f"the input pipeline's stages cannot be read ({reason_of(error)})",
                "leave tf.data's autotune on (options.autotune.enabled) to see the slowest stage",
            )
            return None
        if not rows:
            return None
        when = self._clock.now()
        rows = [{**row, "time_ns": when, "step": steps} for row in rows]
        return {
            name: np.array([row[name] for row in rows], object if kind == "text" else None)
            for name, kind in TABLES["pipeline"].items()
        }

    def _in_time(self) -> list[dict[str, Any]]:
        """Return the adapter's rows. Raises: what the adapter raises; TimeoutError if it hangs."""
        rows: list[dict[str, Any]] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                rows.extend(self._adapter.pipeline())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="gpu-util-pipeline", daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        if thread.is_alive():
            raise TimeoutError
        if errors:
            raise errors[0]
        return rows
