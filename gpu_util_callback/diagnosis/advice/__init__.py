"""Remedies: a few sentences and the line of code, in the words of the run's own framework."""
