"""Samples of GPUs and host, with queries on single columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from gpu_util_callback.diagnosis.evidence.bins import Mean, SampleBins
from gpu_util_callback.diagnosis.thresholds import Count

__all__ = ["MIN_SAMPLES", "Gauges"]

MIN_SAMPLES = Count(3, "in a range: NVML averages over up to a second")
_Answer = TypeVar("_Answer")


class Gauges:
    """Samples by group.

    "gpu<i>" is as polled, "gpu<i>/utilization" from the driver's own buffer; then there are
    "gpu<i>/gpm", "host" and others.

    Rules repeat the same queries on the same rows: answers are cached until new rows come.
    """

    def __init__(self) -> None:
        self.samples: dict[str, SampleBins] = {}
        # GPU -> the driver's error number (Xid) -> time of its last report. Several come at once,
        # of which a bin would hold the mean.
        self.errors: dict[str, dict[int, int]] = {}
        self._answers: dict[Hashable, object] = {}

    def add_samples(self, samples: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add new samples of any group, each once and in order."""
        self.forget()
        for group, block in samples.items():
            self.samples.setdefault(group, SampleBins()).add(block)
            if group.endswith("/xid") and "xid" in block:
                told = self.errors.setdefault(group.removesuffix("/xid"), {})
                for time_ns, number in zip(block["time_ns"], block["xid"], strict=True):
                    if np.isfinite(number):
                        told[int(number)] = int(time_ns)

    def forget(self) -> None:
        """Clear the cached answers: new rows may change them."""
        self._answers.clear()

    def once(self, question: Hashable, answer: Callable[[], _Answer]) -> _Answer:
        """Return the result of `answer`, computed once per question."""
        try:
            return self._answers[question]  # type: ignore[return-value]
        except KeyError:
            found = self._answers[question] = answer()
            return found

    def gpu_mean(
        self,
        index: int,
        column: str,
        start_ns: int,
        end_ns: int,
        at_least: int = MIN_SAMPLES,
        reach: float = 0.0,
    ) -> Mean | None:
        """Return a GPU's column over a range; None with fewer samples than `at_least`.

        The driver's own buffer is preferred where it covers the range: it holds more samples.

        Args:
            reach: the share of the range that must lie between the first and the last of them.
        """
        best: Mean | None = None
        for part in ("", "/utilization", "/gpm"):
            bins = self.samples.get(f"gpu{index}{part}")
            if bins is None or column not in bins:
                continue
            asked = column, start_ns, end_ns
            seen = self.once((bins, *asked), partial(bins.over, *asked))
            if seen is None or seen.samples < at_least or seen.reach < reach:
                continue
            if best is None or seen.samples > best.samples:
                best = seen
        return best

    def column(self, index: int, name: str) -> SampleBins | None:
        """Return a GPU's group with this column, None if no group has it.

        The driver's own buffer, if recorded, holds the time of each value; a polled one is up to a
        second old.
        """
        return self.once((index, name), lambda: self._column(index, name))

    def _column(self, index: int, name: str) -> SampleBins | None:
        found = [
            bins
            for part in ("/utilization", "", "/gpm", "/allocator")
            if (bins := self.samples.get(f"gpu{index}{part}")) is not None and name in bins
        ]
        if len(found) > 1 and 2 * found[0].samples < found[1].samples:
            return found[1]
        return found[0] if found else None

    def highest(self, index: int, name: str) -> float | None:
        """Return the largest value of a GPU's column, None if it was not sampled."""
        bins = self.column(index, name)
        return bins.maximum(name) if bins is not None else None
