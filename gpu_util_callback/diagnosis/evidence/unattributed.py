"""Time of a loop of one's own that lies outside its steps, and that no phase explains."""

from dataclasses import dataclass

import numpy as np

from gpu_util_callback.diagnosis.evidence.phases import Occurrences
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.evidence.stalls import lost_in
from gpu_util_callback.diagnosis.finding import Advice, Range
from gpu_util_callback.words import duration

__all__ = ["Unmarked", "unmarked"]

# Stretches of this share of the longest one are of its kind.
ALIKE = 0.1
# Such a share of the time lies where it is said to lie.
MOSTLY = 0.7
# Work in fewer than half of the steps is something done now and then.
SELDOM = 0.5
# Blocks of so few steps tell one stretch from the next.
FEW_ROWS = 16


@dataclass(frozen=True, slots=True)
class Unmarked:
    """What passed between steps without a name.

    Attributes:
        where: from the first step to the end of the last such stretch.
        took_ns: all of it; `usual_ns`: with the longest stretch counted like the middle one.
        lost_ns: of it the GPU idled; `active_pct`: how active it was meanwhile, None = not sampled.
        times: how often; None = between most of the steps.
        place: where in the loop, in words.
        pieces: the stretches, where they are told apart.
    """

    where: Range
    took_ns: int
    usual_ns: int
    longest_ns: int
    lost_ns: int
    active_pct: float | None
    times: int | None
    place: str
    advice: Advice
    pieces: list[tuple[int, int]]


def unmarked(run: Run) -> Unmarked | None:
    """The unnamed time of a loop of one's own, None where nothing like it comes twice.

    What lies before the first step is setting up. What the account calls "other" is the most that
    it can be.
    """
    steps = run.steps
    if run.fact("fit", "loop") != "custom" or not len(steps):
        return None
    spent = _by_block(run)
    stretches = spent[spent >= max(1.0, ALIKE * float(spent.max()))]
    if len(stretches) < 2:
        return None
    middle = float(np.median(stretches))
    last_ns = int(steps["end_ns"].max())
    tail = min(middle, _tail(run, last_ns))
    took = round(min(float(spent.sum()) + tail, _other_ns(run)))
    usual = took if len(stretches) < 3 else round(took - float(spent.max()) + middle)
    where = Range(run.first_step, run.end_step, int(steps["start_ns"][0]), round(last_ns + tail))
    rare = len(stretches) * steps.rows_per_block <= SELDOM * steps.total_rows
    told_apart = rare and steps.rows_per_block <= FEW_ROWS
    lost, active, pieces = took, None, []
    if told_apart:
        occurrences = _occurrences(run, spent, last_ns, tail)
        pieces = list(zip(occurrences["start_ns"].tolist(), occurrences["end_ns"].tolist(),
                          strict=True))  # fmt: skip
        lost, active = lost_in(run, occurrences, where)
        lost = min(lost, took)
    else:
        idle = run.idle(where.start_ns, where.end_ns)
        if idle is not None:
            lost, active = min(took, idle.idle_ns), round(idle.active_pct, 1)
    times, place, advice = _place(run, took, tail, len(stretches) + (tail >= ALIKE * middle),
                                  rare, told_apart)  # fmt: skip
    longest = float(spent.max()) if told_apart else float(steps["top_between_ns"].max())
    return Unmarked(where, took, usual, round(longest), lost, active, times, place, advice, pieces)


def _by_block(run: Run) -> np.ndarray:
    """Unnamed ns of each block and before it, but for what lies before the first; shape `(n,)`."""
    steps = run.steps
    edges = np.concatenate([steps["start_ns"][:1], steps["end_ns"]])
    named = np.diff(run.phases.accounted_ns(edges))
    spent = np.maximum(steps["between_ns"] - named, 0)
    for block in np.flatnonzero(spent >= 1e9) if run.present_ns < run.wall_ns else ():
        gone = run.absent_ns(int(edges[block]), int(edges[block + 1]))
        spent[block] = max(0.0, spent[block] - gone)
    return spent


def _tail(run: Run, last_ns: int) -> float:
    """The same behind the last step."""
    edges = np.array([last_ns, max(last_ns, run.end_ns)])
    named = float(np.diff(run.phases.accounted_ns(edges))[0])
    return max(0.0, float(edges[1] - edges[0]) - named - run.absent_ns(*edges.tolist()))


def _other_ns(run: Run) -> float:
    known = (run.account.get("time_s") or {}).get("other") if run.account else None
    return np.inf if known is None else 1e9 * float(known)


def _occurrences(run: Run, spent: np.ndarray, last_ns: int, tail: float) -> Occurrences:
    """The stretches, each where it lies: before its block, else in the midst of it."""
    steps, found = run.steps, Occurrences()
    begins, ends = steps["start_ns"], steps["end_ns"]
    for block in np.flatnonzero(spent >= max(1.0, ALIKE * float(spent.max()))).tolist():
        length = int(spent[block])
        before = int(begins[block] - ends[block - 1]) if block else 0
        end = int(begins[block])
        if 2 * before < length:
            end = int(begins[block] + ends[block] + length) // 2
        found.add(end - length, end, length, int(steps["first_step"][block]), 1)
    if tail >= 1:
        found.add(last_ns, last_ns + int(tail), int(tail), run.end_step, 1)
    return found


def _place(
    run: Run, took: int, tail: float, count: int, rare: bool, told_apart: bool
) -> tuple[int | None, str, Advice]:
    """How often, where in the loop, and what to write there."""
    says = "The monitor does not know what the loop does then: validation, saving, logging? "
    mark = "Mark it, so that it has a name and is judged as what it is."
    epochs = run.phases.of("epoch").get("")
    if epochs is not None and epochs.count >= 2 and _outside(run, epochs) + tail >= MOSTLY * took:
        each = duration(took / epochs.count / 1e9)
        return epochs.count, "after each epoch", Advice(
            f"After each epoch {each} pass that no step and no phase explains. {says}{mark}",
            'with monitor.phase("validation"): ...  # what runs after each epoch, by its name',
            0.0,
        )  # fmt: skip
    rows = run.steps.total_rows
    events = count if told_apart else run.steps.total("between_events")
    if events and (rare or events < SELDOM * rows):
        every = max(2, round(rows / events))
        place = f"about every {every} steps"
        return events, place, Advice(
            f"{place[0].upper()}{place[1:]}, {duration(took / events / 1e9)} pass that no step and "
            f"no phase explains. {says}{mark}",
            f'with monitor.phase("checkpoint"): ...  # what runs {place}, under its name',
            0.0,
        )  # fmt: skip
    each = duration(took / max(1, rows) / 1e9)
    if not run.steps.total("wait_known"):
        return None, "between the steps", Advice(
            f"Between two steps {each} pass that the monitor does not see; fetching the next batch "
            "is part of it. Let it see the fetching.",
            "for batch in monitor.batches(dataset): ...  # then without monitor.step()",
            0.0,
        )  # fmt: skip
    return None, "between the steps", Advice(
        f"Between two steps {each} pass that no step and no phase explains. {mark}",
        'with monitor.phase("logging"): ...  # what the loop does between two steps, by its name',
        0.0,
    )  # fmt: skip


def _outside(run: Run, epochs: Occurrences) -> float:
    """Unnamed time between epochs."""
    starts, ends = epochs["start_ns"], epochs["end_ns"]
    if epochs.joined:
        edges = np.array([starts[0], ends[-1]])
        named = float(np.diff(run.phases.accounted_ns(edges))[0])
        return max(0.0, float(edges[1] - edges[0]) - epochs.self_ns - named)
    named = run.phases.accounted_ns(starts[1:]) - run.phases.accounted_ns(ends[:-1])
    return float(np.maximum(starts[1:] - ends[:-1] - named, 0).sum())
