"""The cases that TraceML's tests of step memory judge, described in our own words as data.

Each is a course of one GPU's peak over 60 steps, what the device holds, and whether TraceML calls
it creep. "full" is its high pressure, which is ours as well, "uneven" its imbalance of ranks, which
no rule of ours judges by memory.
"""

GIB = 1 << 30
# name: (first, last, device's memory in bytes, creep: "confirmed", "early" or "", full)
CASES = {
    "a level near the device's memory": (96.0 * GIB / 100, 96.0 * GIB / 100, GIB, "", True),
    "a third more within sixty steps, little left": (
        4 * GIB,
        6 * GIB,
        6.1 * GIB,
        "confirmed",
        True,
    ),
    "half as much again, plenty left": (4 * GIB, 6 * GIB, 100 * GIB, "confirmed", False),
    "a few per cent, plenty left": (4 * GIB, 4.1 * GIB, 100 * GIB, "early", False),
    "level and far from full": (0.09 * GIB, 0.09 * GIB, GIB, "", False),
    "one rank above the others, level": (0.1 * GIB, 0.1 * GIB, GIB, "", False),
}
