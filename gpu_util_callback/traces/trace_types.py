"""The JSON of `gpu-util trace`: every field's type, range and meaning, declared once.

`make schemas` makes the JSON schema of it, as of `diagnosis/report_types.py`.
"""

from typing import TypedDict

from gpu_util_callback.diagnosis.report_types import TraceDiagnosis, Version
from gpu_util_callback.recording.manifest_facts import Count, Number, Signed
from gpu_util_callback.traces.model import TraceFormat
from gpu_util_callback.traces.naming import TensorCore

# An object whose fields are not promised.
Row = dict[str, object]


class CopyBusy(TypedDict):
    """Time in which a device copied, by direction."""

    h2d: Number
    d2h: Number
    d2d: Number


class OfProcess(TypedDict, total=False):
    """A row of a trace with several processes."""

    process: int


class TraceDevice(OfProcess):
    """A device with events; with what the trace knows of its hardware."""

    index: int
    name: str
    span_ms: Number
    start_ms: float
    any_busy_ms: Number
    kernel_busy_ms: Number
    collective_busy_ms: Number
    memset_busy_ms: Number
    copy_busy_ms: CopyBusy
    kernels: Count
    copies: Count


class StepGpu(TypedDict):
    """The ten categories of a step on one GPU, which add up to the step."""

    index: int
    kernel_ms: float
    copy_h2d_ms: float
    copy_d2h_ms: float
    copy_d2d_ms: float
    collective_ms: float
    idle_input_ms: float
    idle_launch_ms: float
    idle_sync_ms: float
    idle_host_ms: float
    other_ms: float
    kernel_busy_ms: float
    any_busy_ms: float


class TraceStep(OfProcess):
    """A step."""

    step: int
    start_ms: float
    duration_ms: Number
    host_input_ms: Number  # what the host spent fetching
    input_wait_ms: Number  # step-wide: every GPU idle for input
    host_op_ms: float
    gpus: list[StepGpu]


class TraceKernel(TypedDict):
    """A kernel, summed over the trace."""

    name: str
    gpu: int
    op: str | None
    collective: bool
    tensor_core: TensorCore
    count: Count
    total_ms: Number
    share_pct: float
    mean_us: float
    min_us: float
    max_us: float
    occupancy_pct: float | None
    registers: int | None
    grid: list[int] | None
    block: list[int] | None


class TraceProcess(TypedDict):
    """A process of the trace."""

    host: str | None
    pid: int | None
    rank: int | None
    steps_from: str
    steps: Count
    steps_judged: bool
    idle_judged: bool
    devices: list[int]
    unused_devices: list[int]  # visible, and without any event


class TraceReport(TraceDiagnosis):
    """The output of `gpu-util trace --json`.

    Version 1. Fields may be added; those described here keep their name, type and meaning. What is
    unknown is null, never 0. Times are milliseconds since the trace's start.
    """

    version: Version
    format: TraceFormat
    paths: list[str]
    start_ns: int | None
    processes: list[TraceProcess]
    devices: list[TraceDevice]
    steps: list[TraceStep]
    kernels: list[TraceKernel]
    copies: list[Row]
    launches: list[Row]
    host_ops: list[Row]
    pipeline: list[Row]
    thresholds: dict[str, dict[str, Signed]]
    problems: list[str]
