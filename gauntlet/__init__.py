"""The gauntlet: programs with a known bottleneck, and whether what we print about them helps.

`python -m gauntlet` trains each program in a process of its own, reads its first finding, applies
the printed cure and measures it. `registry.py` says what a program declares, the thematic modules
hold the programs, `child.py` runs them, `judging.py` compares promise and gain.
"""
