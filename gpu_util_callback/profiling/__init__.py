"""Profiler windows: which steps are profiled, at what cost, and what becomes of their files.

A framework's own profiler belongs to its package in `backends`.
"""
