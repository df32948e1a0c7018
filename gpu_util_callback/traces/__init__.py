"""Profiler traces: readers into one event model, step breakdown, kernels.

`read_trace(path)` reads any known file; `measure(trace)` accounts for its time, `imported.analyse`
explains it, too. Needs numpy, never TensorFlow: a trace can be read on a laptop.
"""

from gpu_util_callback.traces.analysis import Analysis, measure
from gpu_util_callback.traces.model import Trace
from gpu_util_callback.traces.read import read_trace

__all__ = ["Analysis", "Trace", "measure", "read_trace"]
