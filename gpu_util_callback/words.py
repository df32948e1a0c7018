"""Formatting of numbers and names for people."""

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["duration", "gpu_names", "percent", "steps", "times", "what_to_do", "workers"]

# A few lines of code are shown as one if they are no longer than this together.
_ONE_LINE = 120
# Commands that only inspect, or are one of several options: the advice's text says what to do.
_LOOKS = re.compile(r"%timeit |top |sudo dmesg|nvidia-smi (pmon|--query|.*-q )|.* & wait$")


def duration(seconds: float) -> str:
    """Format a duration: `5 m 40 s`, `2 h 05 m`, `3.2 s`, `48 ms`."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.00095 else f"{seconds * 1e3:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def percent(value: float) -> str:
    """Format a percentage: `47 %`, `3.2 %` below ten, `3 %` without a fraction."""
    shown = f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"
    return f"{shown.removesuffix('.0')} %"


def gpu_names(gpus: Sequence[int]) -> str:
    """List GPUs: `gpu0`, `gpu0 and gpu2`, `gpu0, gpu1, gpu2 and gpu5`; `6 GPUs` if more."""
    names = [f"gpu{gpu}" for gpu in sorted(gpus)]
    if len(names) > 4:
        return f"{len(names)} GPUs"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]


def workers(ranks: Iterable[int]) -> str:
    """List workers by rank: `Worker 3`, `Workers 0–3 and 7`, `Workers 0, 2, 4 and 9`; `12 workers`
    if they lie in too many places to list.
    """
    ordered = sorted(ranks)
    ends: list[list[int]] = []
    for rank in ordered:
        if ends and rank == ends[-1][1] + 1:
            ends[-1][1] = rank
        else:
            ends.append([rank, rank])
    if len(ends) > 4:
        return f"{len(ordered):,} workers"
    names = [f"{first}–{last}" if last > first else f"{first}" for first, last in ends]
    joined = " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
    return f"Worker{'s' if len(ordered) > 1 else ''} {joined}"


def steps(start: int, end: int, of: int | None = None) -> str:
    """Format the steps from `start` up to, not including, `end`: `steps 20–59`; `all 240 steps`."""
    if of is not None and start == 0 and end >= of > 1:
        return f"all {of:,} steps"
    return f"steps {start:,}–{end - 1:,}" if end - start > 1 else f"step {start:,}"


def times(factor: float) -> str:
    """Format a factor: `1.9×`, `4×`, `12×`; two digits, since a promise is an upper bound."""
    return f"{float(f'{factor:.2g}'):g}×"


def what_to_do(advice: Mapping[str, str]) -> str:
    """Return the advice in one line: its code if that is one line with an effect, else its text."""
    lines = advice["code"].splitlines()
    if _LOOKS.match(advice["code"]):
        return advice["text"]
    if len(lines) == 1:
        return lines[0].strip()
    bare = [line.partition("  # ")[0] for line in lines]
    together = "; ".join(bare)
    nested = any(line.startswith(" ") or line.endswith(":") for line in bare)
    return advice["text"] if nested or not lines or len(together) > _ONE_LINE else together
