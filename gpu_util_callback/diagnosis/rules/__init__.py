"""The causes of a low utilization, one rule a file.

A rule reads `evidence`, never files or frameworks; it states its thresholds and is silent, never
positive, where a source is missing.
"""
