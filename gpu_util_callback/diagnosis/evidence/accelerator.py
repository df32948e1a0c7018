"""Accelerator utilization (AU) by MLPerf Storage's definition, per epoch and run."""

from collections.abc import Iterable, Mapping

import numpy as np

from gpu_util_callback.diagnosis.evidence.phases import Occurrences, Phases
from gpu_util_callback.diagnosis.thresholds import Count

LEAST_STEPS = Count(2, "of an epoch: the first, in which all starts up, is left out by definition")
# Rows outside steps that belong to an epoch's training: the last results, the exhausted input.
_TRAINING = (("gap", "step"), ("gap", "input_wait"), ("input_setup", "input_wait"))


class AcceleratorUse:
    """Times of computing and of everything, over stretches of consecutive steps.

    The definition is that of the MLPerf Storage benchmark, as its tool DLIO computes it: the time
    of computing over the time from the end of an epoch's first step to the end of its last one.
    Computing is a step without its wait for input, its compilation and its callbacks.

    Memory is bounded: of a run with more stretches than `CAPACITY`, neighbours are joined.
    """

    CAPACITY = 4096
    _SUMS = ("rows", "compute_ns", "unknown")
    _FIRSTS = ("start_ns", "first_ns", "first_compute_ns")

    def __init__(self) -> None:
        self._data = {name: np.zeros(self.CAPACITY, np.int64) for name in (*self._SUMS, *self._FIRSTS, "end_ns")}
        self._per_row = 1  # stretches
        self._stretches = 0
        self._last_end: int | None = None  # of the newest step

    def add(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `steps` table, in order."""
        if not len(steps["start_ns"]):
            return
        start, length, body, wait = (steps[name] for name in ("start_ns", "duration_ns", "body_ns", "input_wait_ns"))
        compute = np.maximum(body, 0) + np.maximum(steps["gpu_wait_ns"], 0)
        end = start + np.maximum(length, 0)
        before = np.concatenate([[-1 if self._last_end is None else self._last_end], end[:-1]])
        begins = start != before
        self._last_end = int(end[-1])
        number = self._stretches - 1 + np.cumsum(begins)
        self._stretches = int(number[-1]) + 1
        while self._stretches > self.CAPACITY * self._per_row:
            self._fold()
        at = number // self._per_row
        for name, values in zip(self._SUMS, (np.ones_like(start), compute, (body < 0) | (wait < 0)), strict=True):
            np.add.at(self._data[name], at, values)
        first = begins & (number % self._per_row == 0)
        for name, values in zip(self._FIRSTS, (start, end - start, compute), strict=True):
            self._data[name][at[first]] = values[first]
        np.maximum.at(self._data["end_ns"], at, end)

    def _fold(self) -> None:
        half = self.CAPACITY // 2
        for name, values in self._data.items():
            left, right = values[0::2].copy(), values[1::2].copy()
            joined = left
            if name in self._SUMS:
                joined = left + right
            elif name == "end_ns":
                joined = np.maximum(left, right)
            values[:half], values[half:] = joined, 0
        self._per_row *= 2

    def result(self, phases: Phases) -> dict | None:
        """Return the utilization; None where the parts of steps are not known, or steps too few.

        Steps after the last epoch count as one more epoch, and all of a loop without epochs as one.

        Returns:
            `{"pct", "epochs"}`: the mean of the epochs, as in the benchmark, and each epoch's
            `{"epoch", "steps", "au_pct"}`, numbered from 0; [] of more epochs than are kept.
        """
        used = -(-self._stretches // self._per_row)
        data = {name: values[:used] for name, values in self._data.items()}
        if not used or 2 * data["unknown"].sum() > data["rows"].sum():
            return None
        epochs = phases.of("epoch").get("")
        ends = np.sort(epochs["end_ns"]) if epochs is not None else np.zeros(0, np.int64)
        outside = [(account == "step", phases.of(kind, account=account).get("")) for kind, account in _TRAINING]
        of_epoch = np.searchsorted(ends, data["start_ns"], side="right")
        epochs_measured = []
        for epoch in np.unique(of_epoch).tolist():
            rows = of_epoch == epoch
            until = int(ends[epoch]) if epoch < len(ends) else None
            utilization = _utilization({name: data[name][rows] for name in data}, outside, until)
            if utilization is not None:
                steps, pct = utilization
                epochs_measured.append({"epoch": epoch, "steps": steps, "au_pct": round(pct, 3)})
        if not epochs_measured:
            return None
        mean = sum(epoch_use["au_pct"] for epoch_use in epochs_measured) / len(epochs_measured)
        is_exact = epochs is None or not epochs.joined
        return {"pct": round(mean, 3), "epochs": epochs_measured if is_exact else []}


def _utilization(
    rows: Mapping[str, np.ndarray], outside: Iterable[tuple[bool, Occurrences | None]], until_ns: int | None
) -> tuple[int, float] | None:
    """Return the steps of an epoch that count, and its utilization in percent.

    Args:
        outside: rows outside the steps, and whether they are computing.
        until_ns: the epoch's end, None where it is not known.
    """
    steps = int(rows["rows"].sum())
    if steps < LEAST_STEPS:
        return None
    begin = int(rows["start_ns"][0] + rows["first_ns"][0])
    end = int(rows["end_ns"].max())
    compute = int(rows["compute_ns"].sum() - rows["first_compute_ns"][0])
    for computing, of in outside:
        if of is None:
            continue
        inside = (of["start_ns"] >= begin) & (of["end_ns"] <= (until_ns or end))
        if inside.any():
            end = max(end, int(of["end_ns"][inside].max()))
            compute += int(of["self_ns"][inside].sum()) if computing else 0
    if end <= begin:
        return None
    return steps - 1, min(100.0, 100 * compute / (end - begin))
