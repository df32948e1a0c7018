"""Profiler windows: the steps they profile, their cost, and the reading of their files.

A framework's own profiler belongs to its package in `backends`.
"""
