"""Checks that this machine's GPUs, driver and framework work together."""

from gpu_util_callback.doctor._examine import examine, quick_check
from gpu_util_callback.doctor._report import Line, Report

__all__ = ["Line", "Report", "examine", "quick_check"]
