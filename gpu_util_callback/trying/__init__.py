"""Measures what a change does to a training: children in turns, one estimator, one table of changes."""
