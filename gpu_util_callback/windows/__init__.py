"""Profiler windows: which steps are profiled, at what cost, and what becomes of their files."""
