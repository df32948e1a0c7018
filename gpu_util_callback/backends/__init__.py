"""The frameworks: one package each, behind one registry (`base`).

A framework is imported by the modules of its own package alone, and only in a process that has
imported it already.
"""
