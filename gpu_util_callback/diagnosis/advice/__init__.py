"""Remedies: a few sentences and the line of code, in terms of the run's own framework."""
