"""The cases that TraceML's tests of step memory judge, described in our own words as data.

Each is a course of one GPU's peak over 60 steps, what the device holds, and whether TraceML calls
it creep. "full" is its high pressure, which is ours as well; its imbalance of ranks is judged
by no rule of ours. Where several apply, TraceML names pressure first and creep last.
"""

GIB = 1 << 30
# name: (first, last, device's memory in bytes, creep: "confirmed", "early" or "", full)
CASES = {
    "a level near the device's memory": (96.0 * GIB / 100, 96.0 * GIB / 100, GIB, "", True),
    "half as much again, little left": (4 * GIB, 6 * GIB, 6.1 * GIB, "confirmed", True),
    "half as much again, plenty left": (4 * GIB, 6 * GIB, 100 * GIB, "confirmed", False),
    "a few per cent, plenty left": (4 * GIB, 4.1 * GIB, 100 * GIB, "early", False),
    "level and far from full": (0.09 * GIB, 0.09 * GIB, GIB, "", False),
    "one rank above the others, level": (0.1 * GIB, 0.1 * GIB, GIB, "", False),
}
