"""Readings beside the steps: the driver's counters, the allocator, the input pipeline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_util_callback import daemon
from gpu_util_callback.backends.base import Adapter, Failed, ListedGpu
from gpu_util_callback.recorder.messages import reason_of, warn
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.unused_gpu import checked

if TYPE_CHECKING:
    from gpu_util_callback.gpus import SampleBlock, Sampler


class GpuSamples:
    """The sampler of one recording, and one reading of the allocator per `take`.

    All methods run on the recorder's thread and never raise.

    Args:
        clock: the recording's.
        fail: called with (source, error) for each failure.
    """

    def __init__(self, clock: Clock, fail: Failed):
        self._clock = clock
        self._fail = fail
        self._adapter: Adapter | None = None
        self._sampler: Sampler | None = None
        self._allocator_works = True
        self._devices: list[ListedGpu] | None = None  # as the framework lists them
        self._gpus: list[dict[str, object]] = []
        self._facts: dict[str, Any] = {}  # of a machine that does not change during a fit

    def start(self, adapter: Adapter, hz: float) -> None:
        """Begin to sample, `hz` times a second, on the sampler's own thread."""
        self._adapter = adapter
        try:
            from gpu_util_callback.gpus import FrameworkGpu, Sampler

            self._devices = adapter.runtime.devices()
            gpus = None if self._devices is None else [FrameworkGpu(**d) for d in self._devices]
            self._sampler = Sampler(self._clock, hz=hz, framework_gpus=gpus)
            self._sampler.start()
        except Exception as error:
            self._fail("GPU samples", error)

    def take(self) -> list[SampleBlock]:
        """Return the samples since the last call."""
        return [*self.sampled(), *self._allocators()]

    def sampled(self) -> list[SampleBlock]:
        """Return those of the driver's counters; calls neither driver nor framework."""
        if self._sampler is None:
            return []
        try:
            return list(self._sampler.drain())
        except Exception as error:
            self._fail("GPU samples", error)
            self._sampler = None
            return []

    def _allocators(self) -> list[SampleBlock]:
        """Return what the framework's own allocator holds of each GPU now."""
        if self._adapter is None or not self._allocator_works:
            return []
        try:
            from gpu_util_callback.gpus import SampleBlock

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
        if self._sampler is None or "gpu_check" in self._facts:
            return self._facts
        if "machine" not in self._facts:  # reading the control groups' files takes a millisecond
            self._facts["machine"] = self._sampler.host
        if not self._sampler.nvml_gpus:
            return self._facts
        name = str(framework.get("backend") or framework.get("name") or "")
        self._facts["driver"] = self._sampler.driver
        self._facts["gpu_check"] = checked(
            name, self._devices, self._sampler.nvml_gpus, framework.get("cuda_build"), os.environ
        )
        return self._facts

    @property
    def unavailable(self) -> list[dict[str, str]]:
        """Return what cannot be sampled; in one line where there is no GPU at all."""
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
        """Return rows of the `pipeline` table, if a reading is due and there is something to read.

        Args:
            steps: training steps so far.
            last: whether there will be no later reading.
        """
        now = time.monotonic()
        if not self._works or not self._adapter.has_stages or not steps or (now < self._next and not last):
            return None
        self._next = now + min(SELDOM_S, 1 + self._readings)
        self._readings += 1
        try:
            rows = daemon.begin(self._adapter.pipeline, "gpu-util-pipeline").result(DEADLINE_S)
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
