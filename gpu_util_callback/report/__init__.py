"""Results for people in a terminal: runs, comparisons and traces.

Prints what `diagnosis` found and computes nothing of its own.
"""
