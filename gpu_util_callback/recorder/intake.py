"""Intake of a recording: rows of the timeline, samples of the GPUs, readings of the input pipeline."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback import daemon
from gpu_util_callback.backends.base import Failed, ListedGpu
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.recorder.messages import reason_of, warn
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segments import SampleBlock, Tables, joined
from gpu_util_callback.steps.assemble import Assembler, Item
from gpu_util_callback.steps.callback_list import HookSums
from gpu_util_callback.steps.compilations import Compilations
from gpu_util_callback.steps.timeline import Timeline
from gpu_util_callback.unused_gpu import NOT_GIVEN, checked

if TYPE_CHECKING:
    from gpu_util_callback.gpus import Sampler

MOST_ITEMS = 1 << 14  # of the queue of steps that become rows at once: 10 ms of the GIL
MOST_QUEUED = 1 << 19  # of the steps: 150 MB, in 2.5 s of steps that do nothing


class Intake:
    """Rows and samples of a training since they were last taken.

    Args:
        timeline: of the training thread.
        gpus: the samples.
        fail: reports a failed source.
        lose: is called with (source, error) where rows are lost.

    Attributes:
        hook_sums: of the fit's callbacks.
        on_rows: called with rows and samples as they are taken, on either thread.
        pauses: (start, end) in ns of the last times between the fits of a series.
    """

    def __init__(
        self, timeline: Timeline, gpus: GpuSamples, fail: Callable[..., None], lose: Callable[[str, Exception], None]
    ):
        self.hook_sums: list[HookSums] = []
        self.on_rows: Callable[[Tables, list[SampleBlock]], None] | None = None
        self.pauses: deque[tuple[int, int]] = deque(maxlen=4096)
        self.assembler = Assembler(0, device_done=timeline.device_done, failed=lambda error: fail("input wait", error))
        self._timeline = timeline
        self._gpus = gpus
        self._lose = lose
        self._finished_sums: deque[HookSums] = deque()  # of the fits before
        self._taking = threading.Lock()
        self._early_rows: list[Tables] = []  # taken by `catch_up`
        self._early_samples: list[SampleBlock] = []
        self._unmade: list[Item] = []  # queue items for whose rows there was no memory

    def begin(self, adapter: Adapter, offset_ns: int) -> None:
        """Begin to make rows of the timeline."""
        self.assembler.offset_ns = offset_ns
        self.assembler.compilations = Compilations(adapter.shapes, adapter.shapes_compile, adapter.every_shape_compiles)

    @property
    def steps(self) -> int:
        """Return the number of steps so far."""
        return self.assembler.steps

    @property
    def shapes(self) -> dict[float, int]:
        """Return the signatures of the batches' shapes seen so far, with their ids."""
        return self.assembler.compilations.shapes

    def take_sums(self, sums: list[HookSums]) -> None:
        """Take the sums of the hooks of the fit's callbacks; earlier sums are complete."""
        self._finished_sums.extend(self.hook_sums)
        self.hook_sums = sums

    def take(self, last: bool, ended_ns: int) -> tuple[Tables, list[SampleBlock]]:
        """Return (new rows by table, samples), with those that `catch_up` took before; on the recorder's thread.

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
        return joined([(part, {}) for part in parts])[0], samples

    def catch_up(self) -> None:
        """Take everything up to now and show it to `on_rows`; on the training thread. The next `take` returns it."""
        with self._taking:  # the recorder's thread may be taking rows just now
            rows, samples = self._take_rows(False), self._while_training(self._gpus.sampled(), 0)
            self._early_rows.append(rows)
            self._early_samples += samples
            if self.on_rows is not None:
                self.on_rows(rows, samples)

    def _while_training(self, samples: list[SampleBlock], ended_ns: int) -> list[SampleBlock]:
        """Return the samples without those between the fits of a series, where nothing trained.

        Args:
            ended_ns: as of `take`.
        """
        pauses = list(self.pauses)
        if not pauses:  # not a series
            return samples
        if ended_ns:  # the pause that may have begun
            pauses.append((ended_ns, np.iinfo(np.int64).max))
        times = np.array(pauses, np.int64)  # [pauses, 2]: begin and end
        kept_blocks = []
        for block in samples:
            if block.group.endswith(("/xid", "/lost")):  # events, whenever they occurred
                kept_blocks.append(block)
                continue
            place = np.searchsorted(times[:, 0], block.time_ns, "right") - 1
            outside = (place < 0) | (block.time_ns >= times[place, 1])
            if outside.any():
                kept_blocks.append(replace(block, time_ns=block.time_ns[outside], values=block.values[outside]))
        return kept_blocks

    def _take_rows(self, last: bool) -> Tables:
        """Return the new rows of the timeline's queue by table.

        Items are taken in parts, so that other threads can run. Of a queue that is too long the oldest get no row.
        Where memory is short, the items of a part are kept for the next call, once.

        Args:
            last: no more will come: phases that wait for a step get the last one.
        """
        queue, parts = self._timeline.queue, list[Tables]()
        items_left = len(queue)
        while True:
            retries, items = bool(self._unmade), self._unmade
            surplus = min(len(queue) - MOST_QUEUED, items_left)
            if surplus > 0 and not retries:  # more than can be kept: skip the oldest
                items, count_taken = self.assembler.skip(queue, surplus)
                items_left -= count_taken
            if not (retries or items):  # a part as usual
                items = [queue.popleft() for _ in range(min(items_left, MOST_ITEMS))]
                items_left -= len(items)
            complete = not items_left and not retries
            if complete:
                finished = [self._finished_sums.popleft() for _ in range(len(self._finished_sums))]
                for sums in (*finished, *self.hook_sums):
                    items += sums.take(self._timeline.calls)
            try:
                for name, columns_of_rows in self.assembler.add(items, last and complete).items():
                    parts += [{name: rows} for rows in columns_of_rows]
                self._unmade = []
            except MemoryError as error:  # there may be room the next time
                self._unmade = [] if retries or last else items
                if not self._unmade:
                    self._lose("the recording", error)
                break
            except Exception as error:
                self._unmade = []
                self._lose("step times", error)
            if complete:
                break
        return joined([(part, {}) for part in parts])[0]


class GpuSamples:
    """The sampler of one recording, and one reading of the allocator per `take`.

    All methods run on the recorder's thread and never raise.

    Args:
        clock: the recording's.
        fail: called with (source, error) for each failure.
        withheld: whether the process may use no GPU, although its framework may list some.
    """

    def __init__(self, clock: Clock, fail: Failed, withheld: bool = False):
        self._clock = clock
        self._fail = fail
        self._withheld = withheld
        self._adapter: Adapter | None = None
        self._sampler: Sampler | None = None
        self._allocator_works = True
        self._devices: list[ListedGpu] | None = None  # as the framework lists them
        self._gpus: list[dict[str, object]] = []
        self._facts: dict[str, Any] = {}  # of a machine that does not change during a fit

    def start(self, adapter: Adapter, hz: float) -> None:
        """Begin to sample, `hz` times a second, on the sampler's own thread.

        A process from which GPUs are withheld samples as if none were visible.
        """
        self._adapter = adapter
        try:
            from gpu_util_callback.gpus import FrameworkGpu, Sampler

            self._devices = [] if self._withheld else adapter.runtime.devices()
            gpus = None if self._devices is None else [FrameworkGpu(**d) for d in self._devices]
            environ = {"CUDA_VISIBLE_DEVICES": ""} if self._withheld else os.environ
            self._sampler = Sampler(self._clock, hz=hz, framework_gpus=gpus, environ=environ)
            self._sampler.start()
        except Exception as error:
            self._fail("GPU samples", error)

    def take(self) -> list[SampleBlock]:
        """Return the samples since the last call."""
        return [*self.sampled(), *self._allocators()]

    def sampled(self) -> list[SampleBlock]:
        """Return the driver's samples since the last call, [] after a failure; calls neither driver nor framework."""
        if self._sampler is None:
            return []
        try:
            return list(self._sampler.drain())
        except Exception as error:
            self._fail("GPU samples", error)
            self._sampler = None
            return []

    def _allocators(self) -> list[SampleBlock]:
        """Return one sample a GPU of what the framework's own allocator holds now; [] after a failure."""
        if self._adapter is None or not self._allocator_works:
            return []
        try:
            now = np.array([self._clock.now()])
            return [
                SampleBlock(f"gpu{index}/allocator", tuple(values), now, np.array([list(values.values())]))
                for index, values in self._adapter.runtime.memory().items()
                if values
            ]
        except Exception as error:
            self._fail("allocator memory", error)
            self._allocator_works = False
            return []

    def stop(self) -> None:
        """Stop sampling; the last samples are in the next `take`."""
        if self._sampler is not None:
            try:
                self._sampler.stop()
            except Exception as error:
                self._fail("GPU samples", error)

    @property
    def gpus(self) -> list[dict[str, object]]:
        """Return the sampled GPUs, for the manifest."""
        sampled = list(self._sampler.gpus) if self._sampler is not None else []
        self._gpus = sampled or self._gpus  # a sampler that has just begun knows none yet
        return list(self._gpus)

    def facts(self, framework: Mapping[str, Any]) -> dict[str, Any]:
        """Return `driver`, `machine` and `gpu_check` for the manifest, as far as known by now.

        Args:
            framework: the manifest's facts of the framework, with "cuda_build".
        """
        if self._sampler is None or "gpu_check" in self._facts:  # nothing more will become known
            return self._facts
        if "machine" not in self._facts:  # reading the control groups' files takes a millisecond
            self._facts["machine"] = self._sampler.host
        if not self._sampler.nvml_gpus:  # the driver has not answered yet
            return self._facts
        name = str(framework.get("backend") or framework.get("name") or "")
        self._facts["driver"] = self._sampler.driver
        self._facts["gpu_check"] = (
            [NOT_GIVEN]
            if self._withheld
            else checked(name, self._devices, self._sampler.nvml_gpus, framework.get("cuda_build"), os.environ)
        )
        return self._facts

    @property
    def unavailable(self) -> list[Unavailable]:
        """Return what cannot be sampled; where there is no GPU at all, the first reason is also printed, once."""
        if self._sampler is None:
            return []
        missing = list(self._sampler.unavailable)
        for check in self._facts.get("gpu_check", ()):
            if not self._sampler.gpus:  # all are hidden from this process: nothing is recorded
                reason, cure = check["reason"], check["cure"]
                missing.append({"source": "GPUs", "reason": reason, "cure": cure})
        if missing and not self._sampler.gpus:
            warn("no GPU samples", missing[0]["reason"], missing[0].get("cure") or "")
        return missing

    @property
    def overhead(self) -> dict[str, object]:
        """Return the cost of sampling, for the manifest."""
        return dict(self._sampler.overhead) if self._sampler is not None else {}


SELDOM_S = 10.0
DEADLINE_S = 2.0  # answering takes the framework's own locks; the recording must not wait


class PipelineReadings:
    """Readings of the adapter's pipeline: early in a short run, rare in a long one.

    None is made as an epoch ends: the training thread would wait for the lock that tf.data's
    autotuning holds, or a finished iterator would live on, with its buffers and threads.

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
        """Return rows of the `pipeline` table, one a stage; None where no reading is due or there is nothing to read.

        Args:
            steps: training steps so far.
            last: whether there will be no later reading.
        """
        now = time.monotonic()
        is_due = last or now >= self._next
        if not is_due or not steps or not self._works or not self._adapter.has_stages:
            return None
        self._next = now + min(SELDOM_S, 1 + self._readings)
        self._readings += 1
        try:
            rows = daemon.begin(self._adapter.pipeline, "gpu-util-pipeline").result(DEADLINE_S)
        except Exception as error:
            self._works, timed_out = False, isinstance(error, TimeoutError)
            reason = f"within {DEADLINE_S:g} s" if timed_out else f"({reason_of(error)})"
            cure = "" if timed_out else "leave tf.data's autotune on, and its debug mode off, to see the slowest stage"
            self._fail("pipeline", f"the input pipeline's stages cannot be read {reason}", cure)
            return None
        if not rows:
            return None
        when = self._clock.now()
        rows = [{**row, "time_ns": when, "step": steps} for row in rows]
        return {
            name: np.array([row[name] for row in rows], object if kind == "text" else None)
            for name, kind in TABLES["pipeline"].items()
        }
