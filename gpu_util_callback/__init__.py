"""Diagnosis of an idle GPU, second by second.

Importing this package imports neither Keras, TensorFlow nor NVML: every public name is resolved
on first use, so that a log directory can be read on a machine that has none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gpu_util_callback._version import __version__
from gpu_util_callback.redaction import clear_logs

if TYPE_CHECKING:
    from gpu_util_callback.callback import GpuUtilCallback
    from gpu_util_callback.monitor import GpuUtilMonitor
    from gpu_util_callback.profiling.schedule import TraceSchedule
    from gpu_util_callback.report.notebook import read_recordings
    from gpu_util_callback.traces.imported import trace_handler
    from gpu_util_callback.trainers import lightning_callback, trainer_callback

__all__ = [
    "GpuUtilCallback",
    "GpuUtilMonitor",
    "TraceSchedule",
    "__version__",
    "lightning_callback",
    "read_recordings",
    "trace_handler",
    "trainer_callback",
]

_MODULES = {
    "GpuUtilCallback": "gpu_util_callback.callback",
    "GpuUtilMonitor": "gpu_util_callback.monitor",
    "TraceSchedule": "gpu_util_callback.profiling.schedule",
    "read_recordings": "gpu_util_callback.report.notebook",  # shows them, too
    "trace_handler": "gpu_util_callback.traces.imported",
    "lightning_callback": "gpu_util_callback.trainers",
    "trainer_callback": "gpu_util_callback.trainers",
}

clear_logs()


def __getattr__(name: str):
    try:
        module = _MODULES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__():
    return sorted(__all__)
