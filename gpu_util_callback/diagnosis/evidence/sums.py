"""Bounded sums over the rows and samples of a run: what is known of it, however long it is."""

from collections.abc import Mapping

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import Phases, StepBlocks
from gpu_util_callback.diagnosis.evidence.gauges import SampleBins
from gpu_util_callback.diagnosis.evidence.memory_tracks import MemoryTrack, tracks_of
from gpu_util_callback.diagnosis.evidence.pipeline import Pipeline
from gpu_util_callback.diagnosis.evidence.source import Traced
from gpu_util_callback.diagnosis.evidence.usage import AcceleratorUse, EnergyUse
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segments import AnyTables, complete


class Evidence:
    """Sums over all tables and sample groups; memory, and the cost of adding rows, stay bounded.

    Rows are added once and in order: the same rows give the same sums, however they are split.

    Args:
        started_ns: of the run; None: that of the first row.

    Attributes:
        samples: by group: "gpu<i>" at the time of the poll, "gpu<i>/utilization" at the end of its
            window, "gpu<i>/gpm", "host" and others.
        errors: GPU -> the driver's error number (Xid) -> time of its last report. Several come at
            once, of which a bin would hold the mean.
        memory: "host:process_held_bytes" -> its course.
    """

    def __init__(self, started_ns: int | None = None) -> None:
        self.steps = StepBlocks()
        self.validation = StepBlocks()
        self.phases = Phases()
        self.pipeline = Pipeline()
        self.traced = Traced()
        self.energy = EnergyUse(started_ns)
        self.accelerator = AcceleratorUse()
        self.samples: dict[str, SampleBins] = {}
        self.errors: dict[str, dict[int, int]] = {}
        self.memory: dict[str, MemoryTrack] = {}

    def add(self, tables: AnyTables, samples: AnyTables | None = None) -> None:
        """Add new rows of any tables of the schema and new samples of any groups.

        A column that a table lacks counts as unknown.
        """
        samples = samples or {}
        full = {name: _full(name, table) for name, table in tables.items()}
        if "steps" in full:
            self.steps.add(full["steps"])
            self.accelerator.add(full["steps"])
        if "validation_steps" in full:
            self.validation.add(complete("steps", full["validation_steps"]))
        if "phases" in full:
            self.phases.add(full["phases"])
        if "pipeline" in full:
            self.pipeline.add(full["pipeline"])
        if "traced_steps" in full:
            self.traced.add_steps(full["traced_steps"])
        if "kernels" in full:
            self.traced.add_kernels(full["kernels"])
        self.energy.add(full, samples)
        for group, block in samples.items():
            self._add_samples(group, block)

    def _add_samples(self, group: str, block: Mapping[str, np.ndarray]) -> None:
        self.samples.setdefault(group, SampleBins()).add(block)
        tracks_of(self.memory, group, block)
        if group.endswith("/xid") and "xid" in block:
            last_by_number = self.errors.setdefault(group.removesuffix("/xid"), {})
            for time_ns, number in zip(block["time_ns"], block["xid"], strict=True):
                if np.isfinite(number):
                    last_by_number[int(number)] = int(time_ns)


def _full(name: str, table: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Return a table with all columns of the schema, as arrays."""
    is_full = table.keys() >= TABLES[name].keys() and all(isinstance(column, np.ndarray) for column in table.values())
    return table if is_full else complete(name, table)
