"""Profiler traces: readers into one event model, step breakdown, kernels.

`read_trace(path)` reads any known file; `analyse(trace)` explains it, `measure(trace)` only
accounts for its time. Needs numpy and protobuf, never TensorFlow: a trace can be read on a
laptop.
"""

from gpu_util_callback.traces.analysis import Analysis, analyse, measure
from gpu_util_callback.traces.model import Trace
from gpu_util_callback.traces.read import read_trace

__all__ = ["Analysis", "Trace", "analyse", "measure", "read_trace"]
