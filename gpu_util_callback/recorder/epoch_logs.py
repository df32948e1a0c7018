"""What `GpuUtilCallback(logs=True)` adds to an epoch's logs."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from gpu_util_callback.backends.inputs import batch_shape
from gpu_util_callback.recorder.recorder import Recorder
from gpu_util_callback.recorder.scalars import ScalarPoints
from gpu_util_callback.steps.rows import seen_batch_size

__all__ = ["EpochLogs"]

# Rows outside the steps that are part of an epoch's training: a new iterator and its first batch,
# and waiting for the last steps at the end.
_TRAINING = ("input_wait", "step")


class EpochLogs:
    """Sums over the training of the current epoch, and their means for its logs.

    Args:
        recorder: of the fit.
        adapter: Keras' own data adapter of the fit's input, None where it cannot be found.
    """

    def __init__(self, recorder: Recorder, adapter: Any | None):
        self._recorder = recorder
        fixed, self._numbers = batch_shape(adapter)
        self._batch_size = _count(adapter, "batch_size") or fixed
        self._batches = _count(adapter, "num_batches")  # in an epoch
        partial = _count(adapter, "has_partial_batch")
        self._last_batch = _count(adapter, "partial_batch_size") if partial else None
        self._names: list[str] | None = None  # of this fit: a CSV file has its columns at once
        self._samples = ScalarPoints(1)
        self._reset()
        recorder.on_rows = self._add

    def _reset(self) -> None:
        self._steps = self._known = 0  # steps; those whose wait was measured
        self._shapes: Counter[int] = Counter()  # steps by the id of their shape
        self._training_ns = self._wait_ns = 0
        self._begin_ns, self._end_ns = np.iinfo(np.int64).max, 0

    def _add(self, tables: dict[str, dict[str, Any]], samples: list[Any]) -> None:
        try:
            for block in samples:
                self._samples.add_samples(block.group, block.columns, block.time_ns, block.values)
            if "steps" in tables:
                self._add_steps(tables["steps"])
            if "phases" in tables:
                self._add_phases(tables["phases"])
        except Exception as error:
            self._fail(error)

    def _add_steps(self, steps: dict[str, np.ndarray]) -> None:
        waits = steps["input_wait_ns"]
        self._steps += len(waits)
        self._shapes.update(steps["shape_id"].tolist())
        self._known += int((waits >= 0).sum())
        self._wait_ns += int(waits[waits > 0].sum())
        self._training_ns += int(steps["duration_ns"].sum())
        self._cover(steps["start_ns"], steps["start_ns"] + steps["duration_ns"])

    def _add_phases(self, phases: dict[str, np.ndarray]) -> None:
        accounts = phases["account"]
        rows = np.isin(accounts.astype(str), _TRAINING)
        if rows.any():
            spent = phases["self_ns"]
            self._training_ns += int(spent[rows].sum())
            self._wait_ns += int(spent[rows & (accounts == "input_wait")].sum())
            self._cover(phases["start_ns"][rows], phases["end_ns"][rows])

    def _cover(self, starts: np.ndarray, ends: np.ndarray) -> None:
        self._begin_ns = min(self._begin_ns, int(starts.min()))
        self._end_ns = max(self._end_ns, int(ends.max()))

    def add_to(self, logs: Any) -> None:
        """Add the epoch that ends now to its logs; on the training thread."""
        recorder = self._recorder
        if recorder.on_rows is None or recorder.off or not isinstance(logs, dict):
            return
        try:
            recorder.catch_up()
            found = self._means()
            self._reset()
            if self._names is None:
                self._names = list(found)
                if "gpu_utilization_pct" not in found and self._uses_gpus():
                    self._names.append("gpu_utilization_pct")  # too early for a sample
            logs.update({name: found.get(name, math.nan) for name in self._names})
        except Exception as error:
            self._fail(error)

    def _means(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if not self._training_ns:
            return found
        if self._known:
            found["input_wait_pct"] = min(100.0, 100 * self._wait_ns / self._training_ns)
        means = self._samples.gpu_means(self._begin_ns, self._end_ns)
        used = [means[gpu][0] for gpu in self._used_gpus() if gpu in means]
        known = [one for one in used if one is not None]
        if known:
            found["gpu_utilization_pct"] = sum(known) / len(known)
        samples = self._sample_count()
        if samples:
            found["samples_per_s"] = 1e9 * samples / self._training_ns
        return found

    def _sample_count(self) -> int | None:
        """Return the samples of the epoch's batches, None where their sizes are not known."""
        if self._batch_size is None:
            return self._sum_of_sizes()
        count = self._steps * self._batch_size
        if self._last_batch is not None and self._steps == self._batches:
            count += self._last_batch - self._batch_size
        return count

    def _sum_of_sizes(self) -> int | None:
        signatures = {number: known for known, number in self._recorder.shapes.items()}
        total = 0
        for number, steps in self._shapes.items():
            size = self._size(signatures.get(number, 0.0))
            if size is None:
                return None
            total += steps * size
        return total

    def _size(self, signature: float) -> int | None:
        size = seen_batch_size(signature)
        if size is None and self._numbers and signature and signature % self._numbers == 0:
            return int(signature) // self._numbers  # stamped in the graph
        return size

    def _used_gpus(self) -> list[str]:
        gpus = self._recorder.gpus
        return [f"gpu{gpu['index']}" for gpu in gpus if gpu.get("used_by_framework")]

    def _uses_gpus(self) -> bool:
        return bool(self._used_gpus() or self._recorder.adapter.devices())

    def _fail(self, error: Exception) -> None:
        self._recorder.on_rows = None
        self._recorder.fail("epoch logs", error)


def _count(owner: Any, name: str) -> int | None:
    try:
        value = getattr(owner, name, None)
        return int(value) if value is not None and int(value) > 0 else None
    except Exception:  # Keras' adapters raise for what they do not know
        return None
