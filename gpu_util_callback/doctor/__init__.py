"""Checks that this machine's GPUs, driver and framework work together."""

from gpu_util_callback.doctor._checks import Line, Report, examine

__all__ = ["Line", "Report", "examine"]
