"""The vocabulary: names of causes' evidence and of the categories of time, units, numbers.

The one place for words that the terminal, the report and the tab share; the server sends them to
the tab. A cause's own name is its rule's `title`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeGuard


class Category(NamedTuple):
    """A part of an account of time: its name, and what is counted in it."""

    title: str
    explanation: str


# The training thread's account.
HOST_TIME = {
    "step": Category("training steps", "in the train function, and waiting for the GPU to finish"),
    "input_wait": Category("waiting for input", "the next batch was not ready when the step asked for it"),
    "compile": Category("compiling", "tracing the model and compiling it"),
    "validation": Category("validation", "evaluation during fit, with its own input waits and callbacks"),
    "callbacks": Category("callbacks", "all callbacks except this recorder, checkpoints included"),
    "other": Category("other", "wall time in none of the other categories"),
}
# A GPU's account: the first ten are the categories of a traced step.
GPU_TIME = {
    "kernel": Category("kernels", "at least one compute kernel is running"),
    "copy_h2d": Category(
        "copies to the GPU", "exposed copies: not overlapped with compute, host to device; idle while one is made ready"
    ),
    "copy_d2h": Category("copies to the host", "exposed copies: not overlapped with compute, device to host"),
    "copy_d2d": Category("copies on the GPU", "exposed copies: not overlapped with compute, device to device"),
    "collective": Category("collectives", "communication between GPUs that is not overlapped with compute"),
    "idle_input": Category("idle: input", "idle while the host waits for the next batch"),
    "idle_launch": Category("idle: launch", "idle until the host launches the next kernel"),
    "idle_sync": Category("idle: sync", "idle around device synchronizations"),
    "idle_host": Category("idle: host", "idle with nothing launched: callbacks, Python, other work"),
    "other": Category("other", "in none of the other categories"),
    # Without a profiler window only NVML's samples tell running from idle: its utilization counts copies, too.
    "gpu_active": Category(
        "GPU active", "NVML saw a kernel or a copy running; how much of the GPU it used is not known"
    ),
    "idle": Category("idle", "neither a kernel nor a copy was running; the reason is not known"),
    "outside_steps": Category("outside steps", "validation, callbacks, compilation: outside all profiler windows"),
}
# A traced step without a GPU in the trace.
HOST_STEP = {
    "idle_host": Category("rest of the step", "ops, Python and all other work of the host"),
    "idle_input": Category("waiting for input", "the host fetches the next batch"),
}

_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES = {"B": 1, "MiB": 1 << 20, "GiB": 1 << 30}
# A few lines of code are shown as one if they are no longer than this together.
_ONE_LINE = 120
# Commands that only inspect, or are one of several options: the advice's text says what to do.
_INSPECTS = re.compile(r"%timeit |top |sudo dmesg|nvidia-smi (pmon|--query|.*-q )|.* & wait$")


def ordinal(number: int) -> str:
    """Format an ordinal number: `1st`, `12th`, `1,022nd`."""
    ends = {} if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{ends.get(number % 10, 'th')}"


def capitalized(text: str) -> str:
    """Return a text with its first letter as a sentence's; the rest stays ("GPU-hours")."""
    return f"{text[:1].upper()}{text[1:]}"


def duration(seconds: float) -> str:
    """Format a duration: `5 m 40 s`, `2 h 05 m`, `3.2 s`, `48 ms`."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1e3:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {seconds_left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def energy(joules: float) -> str:
    """Format an energy: `2.1 kWh`, `340 Wh`, `820 J`; three digits."""
    for size, unit in ((3.6e6, "kWh"), (3.6e3, "Wh")):
        if joules >= 0.1 * size:
            return f"{rate(joules / size)} {unit}"
    return f"{rate(joules)} J"


def rate(per_s: float) -> str:
    """Format a number, such as one per second, with three digits: `1,240`, `98.5`, `0.25`."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def percent(value: float) -> str:
    """Format a percentage: `47 %`, `3.2 %` below ten, `3 %` without a fraction."""
    shown = f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"
    return f"{shown.removesuffix('.0')} %"


def listed(names: Sequence[str]) -> str:
    """Format names in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]


def gpu_names(gpus: Sequence[int]) -> str:
    """List GPUs: `gpu0`, `gpu0 and gpu2`, `gpu0, gpu1, gpu2 and gpu5`; `6 GPUs` if more."""
    names = [f"gpu{gpu}" for gpu in sorted(gpus)]
    return f"{len(names)} GPUs" if len(names) > 4 else listed(names)


def workers(ranks: Iterable[int]) -> str:
    """List workers by rank: `Worker 3`, `Workers 0–3 and 7`; `12 workers` if too scattered."""
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
    return f"Worker{'s' if len(ordered) > 1 else ''} {listed(names)}"


def steps(start: int, end: int, of: int | None = None, noun: str = "step") -> str:
    """Format the steps from `start` up to, not including, `end`: `steps 20–59`; `all 240 steps`."""
    if of is not None and start == 0 and end >= of > 1:
        return f"all {of:,} {noun}s"
    return f"{noun}s {start:,}–{end - 1:,}" if end - start > 1 else f"{noun} {start:,}"


def times(factor: float) -> str:
    """Format a factor: `1.9×`, `4×`, `12×`; two digits, since a promise is an upper bound."""
    return f"{float(f'{factor:.2g}'):g}×"


def times_between(least: float, most: float) -> str:
    """Format a range of factors: `1.5 to 2.7×`; one factor where both print alike."""
    return between(times(least), times(most), "×")


def between(low: str, high: str, unit: str = "") -> str:
    """Format a range of printed numbers, both with their unit: `4 to 8 steps`; one number where both print alike."""
    return high if low == high else f"{low.removesuffix(unit)} to {high}"


def counted(number: int, singular: str) -> str:
    """Format a count with its noun: `1 step`, `1,200 steps`."""
    return f"{number:,} {singular}{'' if number == 1 else 's'}"


def what_to_do(advice: Mapping[str, str]) -> str:
    """Return the advice in one line: its code if that is one line with an effect, else its text."""
    lines = advice["code"].splitlines()
    if advice.get("question"):
        return advice["text"]
    if _INSPECTS.match(advice["code"]):
        return advice["text"]
    if len(lines) == 1:
        return lines[0].strip()
    bare = [line.partition("  # ")[0] for line in lines]
    in_one_line = "; ".join(bare)
    nested = any(line.startswith(" ") or line.endswith(":") for line in bare)
    return advice["text"] if nested or not lines or len(in_one_line) > _ONE_LINE else in_one_line


def stood_still(standstill: Mapping) -> str:
    """Return what is known of a time without a step: "no step for 40 s (a step takes 6 ms): …"."""
    goes_on = "end_ns" in standstill and standstill["thread"] != "lock"
    what = "validation step" if standstill.get("validation") else "step"
    usual_ms = standstill.get("step_ms")
    usual = "" if usual_ms is None else f" (a {what} takes {duration(usual_ms / 1e3)})"
    stood = duration(standstill["seconds"])
    opening = f"steps go on, after {stood} without a {what}" if goes_on else f"no {what} for {stood}"
    return f"{opening}{usual}: {waits_at(standstill)}{_seen_meanwhile(standstill)}."


def waits_at(standstill: Mapping) -> str:
    """Return where a training without a step waits: "the training thread is in `f` at a.py:3 (`get`)".

    Args:
        standstill: of the manifest's `step_watch`; "end_ns" is there once it is over.
    """
    ended, calls = "end_ns" in standstill, standstill.get("calls")
    if standstill["thread"] == "lock":
        after = (
            f"; right after that the training thread was in {standstill['place']}" if standstill.get("place") else ""
        )
        return f"C code held Python's lock{after or (f', in `{calls}`' if calls else '')}"
    place = standstill.get("place") or "code of a library"
    place += f" (`{calls}`)" if calls else ""
    if standstill["thread"] == "input":
        return f"training {'waited' if ended else 'waits'} for its input, in {place}"
    return f"the training thread {'was' if ended else 'is'} in {place}"


def _seen_meanwhile(standstill: Mapping) -> str:
    """Return what the GPU, workers and ranks did during a standstill, as a sentence; "" if unknown."""
    gpu_pct, states = standstill.get("gpu_active_pct"), standstill.get("workers") or {}
    parts = [] if gpu_pct is None else [f"GPU {percent(gpu_pct)} active"]
    if states:
        parts.append(f"worker processes: {', '.join(f'{count} {state}' for state, count in states.items())}")
    if standstill.get("first_rank") is not None:
        parts.append(f"worker {standstill['first_rank']} stopped first")
    return f". Meanwhile: {'; '.join(parts)}" if parts else ""


@cache
def evidence_words() -> Mapping[str, Sequence[str]]:
    """Return name of a piece of evidence, or of the threshold it crossed -> its label and its unit.

    The unit "" is that of a count or a text. Read when a finding is first shown: a plain fit has none.
    """
    return json.loads(Path(__file__).with_name("evidence_words.json").read_text(encoding="utf-8"))


def label(name: str) -> str:
    """Return the label of a piece of evidence; its own name, in words, if it is not known."""
    return evidence_words().get(name, [name.replace("_", " ")])[0]


def unit_of(name: str) -> str:
    """Return the unit in which the values of a piece of evidence are stored."""
    return evidence_words().get(name, ["", ""])[1]


def quantity(name: str, value: object) -> str:
    """Format the value of a piece of evidence with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    unit = unit_of(name)
    if unit == "%":
        return percent(value)
    if unit == "×":
        return times(value)
    if unit in _SECONDS:
        return precise(value * _SECONDS[unit])
    if unit in _BYTES:
        return size(value * _BYTES[unit])
    return f"{_number_text(value)} {unit}".rstrip()


def precise(seconds: float) -> str:
    """Format a measured time with three digits: `23.4 ms`, `1.24 s`, `48 µs`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * size:
            shown = seconds / size
            return duration(seconds) if shown >= 99.5 and unit == "s" else f"{shown:.3g} {unit}"
    return "0 ms" if seconds == 0 else f"{seconds * 1e6:.2g} µs"


def size(count: float) -> str:
    """Format an amount of memory with three digits: `1.25 GiB`, `512 MiB`, `100 bytes`."""
    for unit_bytes, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit_bytes:
            return f"{_number_text(count / unit_bytes)} {unit}"
    return f"{_number_text(count)} bytes"


def _number_text(value: float) -> str:
    """Return a number with thousands separated, of fractions three digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


class EvidenceRow(TypedDict):
    """A piece of evidence, ready to show."""

    name: str
    label: str
    value: str
    rule: str  # the limit that it crossed, such as "≥ 5 %"; "" where nothing was compared
    bar: tuple[float, float] | None  # value and limit as numbers, for a small chart


def evidence_rows(finding: Mapping) -> list[EvidenceRow]:
    """Return what a finding rests on, ready to show, each number next to the limit it crossed."""
    rows: list[EvidenceRow] = []
    for name, value in (finding.get("evidence") or {}).items():
        if value is None:
            continue
        limit = (finding.get("threshold") or {}).get(name)
        bar = (value, limit) if _is_number(value) and _is_number(limit) else None
        rows.append(
            {
                "name": name,
                "label": label(name),
                "value": quantity(name, value),
                "rule": f"{'≥' if bar[0] >= bar[1] else '<'} {quantity(name, limit)}" if bar else "",
                "bar": bar,
            }
        )
    return rows


def same_fix(finding: Mapping) -> str:
    """Return a key that findings of one cause share if one change fixes them all.

    Their numbers vary: the GPU, the milliseconds in a text, the workers in a line of code.
    """
    advice = finding["advice"]
    wording = "|".join([finding["cause"], finding["title"], advice["code"] or advice["text"]])
    return f"{re.sub(r'[0-9][0-9.,]*', '#', wording)}|{finding.get('ranks')}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def culprit(finding: Mapping) -> str:
    """Return what the evidence names: the slowest stage and its time, the callback, the layer; "" if nothing."""
    evidence = finding.get("evidence") or {}
    stage, ms = evidence.get("slowest_stage"), evidence.get("stage_ms_per_batch")
    if isinstance(stage, str) and _is_number(ms):
        return f"{stage} takes {quantity('stage_ms_per_batch', ms)} a batch"
    named = (evidence.get(name) for name in ("slowest_stage", "callback", "layer", "op"))
    return next((value for value in named if isinstance(value, str) and value != "not known which"), "")
