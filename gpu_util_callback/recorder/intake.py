"""Rows and samples of a training: taken from its timeline and its GPUs, by one thread at a time."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpu_util_callback.backends.base import Adapter
from gpu_util_callback.recorder.readings import GpuSamples
from gpu_util_callback.recording.segments import Tables
from gpu_util_callback.steps.assemble import Assembler, Item
from gpu_util_callback.steps.callback_list import HookSums
from gpu_util_callback.steps.compilations import Compilations
from gpu_util_callback.steps.timeline import Timeline

if TYPE_CHECKING:
    from gpu_util_callback.gpus import SampleBlock

MOST_ITEMS = 1 << 14  # of the queue of steps that become rows at once: 10 ms of the GIL
MOST_QUEUED = 1 << 19  # of the steps: 150 MB, in 2.5 s of steps that do nothing


class Intake:
    """Rows and samples of a training since the last time.

    Args:
        timeline: of the training thread.
        gpus: the samples.
        fail: reports a failed source.
        distrust: is called with the error where rows are lost.

    Attributes:
        hook_sums: of the fit's callbacks.
        on_rows: called with rows and samples as they are taken, on either thread.
        pauses: (start, end) in ns of the last times between the fits of a series.
    """

    def __init__(
        self, timeline: Timeline, gpus: GpuSamples, fail: Callable[..., None], distrust: Callable[[Exception], None]
    ):
        self.hook_sums: list[HookSums] = []
        self.on_rows: Callable[[Tables, list[SampleBlock]], None] | None = None
        self.pauses: deque[tuple[int, int]] = deque(maxlen=4096)
        self.assembler: Assembler | None = None
        self._timeline = timeline
        self._gpus = gpus
        self._fail = fail
        self._distrust = distrust
        self._finished_sums: deque[HookSums] = deque()  # of the fits before
        self._taking = threading.Lock()
        self._early_rows: list[Tables] = []  # taken by `catch_up`
        self._early_samples: list[SampleBlock] = []
        self._again: list[Item] = []  # what was taken when there was no memory for its rows

    def begin(self, adapter: Adapter, offset_ns: int) -> None:
        """Begin to make rows of the timeline."""
        compilations = Compilations(adapter.shapes, adapter.shapes_compile, adapter.every_shape_compiles)
        self.assembler = Assembler(
            offset_ns, compilations, self._timeline.device_done, lambda error: self._fail("input wait", error)
        )

    @property
    def steps(self) -> int:
        """Return the number of steps so far."""
        return self.assembler.steps if self.assembler is not None else 0

    @property
    def shapes(self) -> dict[float, int]:
        """Return the signatures of the batches' shapes seen so far, with their ids."""
        return self.assembler.compilations.shapes if self.assembler is not None else {}

    def take_sums(self, sums: list[HookSums]) -> None:
        """Take the sums of the hooks of the fit's callbacks; earlier sums are complete."""
        self._finished_sums.extend(self.hook_sums)
        self.hook_sums = sums

    def take(self, last: bool, ended_ns: int) -> tuple[Tables, list[SampleBlock]]:
        """Take new rows and samples, with those that `catch_up` took.

        Args:
            last: no more will come.
            ended_ns: when the newest fit ended; 0 = it has not.
        """
        with self._taking:
            samples = self._while_training(self._gpus.take(), ended_ns)
            parts = [*self._early_rows, self._take_rows(last)]
            if self.on_rows is not None:
                self.on_rows(parts[-1], samples)
            samples = [*self._early_samples, *samples]
            self._early_rows, self._early_samples = [], []
        return parts[0] if len(parts) == 1 else _joined(parts), samples

    def catch_up(self) -> None:
        """Take everything up to now and show it to `on_rows`; on the training thread."""
        with self._taking:
            rows, samples = self._take_rows(False), self._while_training(self._gpus.sampled(), 0)
            self._early_rows.append(rows)
            self._early_samples += samples
            if self.on_rows is not None:
                self.on_rows(rows, samples)

    def _while_training(self, samples: list[SampleBlock], ended_ns: int) -> list[SampleBlock]:
        """Return the samples without those between the fits of a series, where nothing trained."""
        pauses = list(self.pauses)
        if not pauses:
            return samples
        if ended_ns:
            pauses.append((ended_ns, np.iinfo(np.int64).max))
        times = np.array(pauses, np.int64)
        training = []
        for block in samples:
            if block.group.endswith(("/xid", "/lost")):  # events, whenever they occurred
                training.append(block)
                continue
            place = np.searchsorted(times[:, 0], block.time_ns, "right") - 1
            outside = (place < 0) | (block.time_ns >= times[place, 1])
            if outside.any():
                training.append(replace(block, time_ns=block.time_ns[outside], values=block.values[outside]))
        return training

    def _take_rows(self, last: bool) -> Tables:
        queue, parts = self._timeline.queue, list[Tables]()
        items_left = len(queue)
        while self.assembler is not None:
            again, items = bool(self._again), self._again
            surplus = min(len(queue) - MOST_QUEUED, items_left)
            if surplus > 0 and not again:
                items, count_taken = self.assembler.skip(queue, surplus)
                items_left -= count_taken
            if not (again or items):
                items = [queue.popleft() for _ in range(min(items_left, MOST_ITEMS))]
                items_left -= len(items)
            complete = not items_left and not again
            if complete:
                finished = [self._finished_sums.popleft() for _ in range(len(self._finished_sums))]
                for sums in (*finished, *self.hook_sums):
                    items += sums.take(self._timeline.calls)
            try:
                for name, columns_of_rows in self.assembler.add(items, last and complete).items():
                    parts += [{name: rows} for rows in columns_of_rows]
                self._again = []
            except MemoryError as error:  # there may be room the next time
                self._again = [] if again or last else items
                if not self._again:
                    self._lose("the recording", error)
                break
            except Exception as error:
                self._again = []
                self._lose("step times", error)
            if complete:
                break
        return _joined(parts)

    def _lose(self, source: str, error: Exception) -> None:
        """Note that rows were lost: an account without them tells nothing."""
        self._fail(source, error)
        self._distrust(error)


def _joined(parts: list[Tables]) -> Tables:
    """Return the rows of all parts by table."""
    rows = defaultdict[str, list[dict[str, np.ndarray]]](list)
    for part in parts:
        for name, table in part.items():
            rows[name].append(table)
    return {
        name: {column: np.concatenate([table[column] for table in columns_of_rows]) for column in columns_of_rows[0]}
        for name, columns_of_rows in rows.items()
    }
