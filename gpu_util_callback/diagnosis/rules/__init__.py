"""The causes of a low utilization, one rule per file.

A rule reads `evidence`, never files or frameworks; it states its thresholds and is silent, never
positive, if a source is missing.
"""
