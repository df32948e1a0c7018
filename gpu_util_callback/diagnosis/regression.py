"""Is a run slower than its baseline? A comparison that knows how much both of them scatter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.thresholds import Constant, Count
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.redaction import hashed_script
from gpu_util_callback.words import percent

__all__ = ["SLOWER", "UNKNOWN", "UNRESOLVED", "WITHIN", "Verdict", "slowdowns"]

SLOWER, WITHIN, UNRESOLVED, UNKNOWN = "slower", "within", "unresolved", "unknown"
WARM_UP = Count(20, "the first steps fill caches and buffers")
BLOCKS = Count(8, "of neighbouring steps, long enough that what drifts within seconds shows")
MOST_BLOCKS = Count(16, "know their own scatter well, and what drifts still shows")
BLOCK_STEPS = Count(24, "shorter blocks have no stable quantile")
LONG_BLOCK = Count(120, "steps, and the quantile of a block hardly adds to the scatter")
PROCESS = Constant(
    0.005,
    "standard deviation of two processes that run the same program, at least, for reasons that "
    "last as long as they do: the placement of memory and threads, the clock of the machine",
)
RUNS = Constant(
    0.6,
    "of the logarithm of the 30th percentile over the 10th, at most, is the standard deviation of "
    "the level of quick steps between runs: 0.56 was seen in fits that compute on a calm and on a "
    "busy CPU",
)
# A step that mostly waits, for a device, depends less on where its process was placed.
COMPUTES = Constant(80, "percent of a core, used by the process: its steps are the CPU's own")
RUNS_WAITING = Constant(
    0.4, "the same where steps wait: 0.32 to 0.49 was seen, and 0.66 of a little"
)
PROCESS_WAITING = Constant(
    0.008,
    "the same as above where the spread of waiting steps, which may be small, is to say it: 0.007 "
    "to 0.0095 was seen, and with 0.003 5 of 108 unchanged pairs failed",
)
STEPS = Count(32, "for a degree of freedom of that: what spreads steps lasts for some of them")
ENOUGH_RUNS = Count(3, "as many baseline runs show by themselves how much runs differ")
MOST_RUNS = 20
# One-sided quantiles of Student's t at 99.5 %, by degrees of freedom: two measures are compared,
# so that a run that has not changed fails in 1 of 100 comparisons at most.
_T = ((1, 63.657), (2, 9.925), (3, 5.841), (4, 4.604), (5, 4.032), (6, 3.707), (7, 3.499),
      (8, 3.355), (10, 3.169), (15, 2.947), (20, 2.845), (30, 2.750), (60, 2.660))  # fmt: skip
_NORMAL = 2.576


def _quick(took: np.ndarray) -> float:
    return float(np.percentile(took, 20))


# What other programs add to some of the steps does not move their 20th percentile; what stalls
# training now and then shows in the mean.
MEASURES = {"step": _quick, "mean step": np.mean}


@dataclass(frozen=True, slots=True)
class Measure:
    """A run's log of seconds per step.

    Attributes:
        level: of all its blocks.
        scatter: the standard deviation of the blocks.
        blocks: how many there are.
        between: that of the levels of runs, by the spread of the steps; None = not known.
        steps: it rests on.
    """

    level: float
    scatter: float
    blocks: int
    between: float | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much slower a run is than its baseline.

    Attributes:
        outcome: `SLOWER`, `WITHIN`, `UNRESOLVED` (too much scatter), `UNKNOWN` (no comparison).
        measure: "step" or "mean step": the one that decided; see `MEASURES`.
        slowdown_pct, low_pct, high_pct: the estimate and its bounds, each exceeded in 0.5 % of
            comparisons of runs that do not differ; None where there is none.
        baseline: the ids of the runs it is compared with.
        sentence: everything in one sentence.
    """

    run: str
    id: str
    outcome: str
    sentence: str
    measure: str = ""
    slowdown_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    baseline: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.outcome in (SLOWER, UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {
            "baseline": list(self.baseline)
        }


def slowdowns(
    runs: Sequence[Recording],
    baseline: Sequence[Recording],
    max_slowdown: float,
    repeats: bool = False,
) -> list[Verdict]:
    """Compare each run with its baseline: the runs of the same name there, or of the same job.

    A run is slower if it is proven to be slower at all, and a slowdown of `max_slowdown` percent is
    not ruled out; it is within if that is ruled out. Its scatter cannot resolve the rest.

    Args:
        baseline: all recordings of the baseline.
        repeats: runs of one job are repeats of one program: compared together, whatever their
            names.
    """
    groups: dict[Any, list[Recording]] = {}
    for run in runs:
        key = (run.rank or 0, *_job(run)) if repeats else run.id
        groups.setdefault(key, []).append(run)
    return [
        _verdict(some, _comparable(some[0], baseline, repeats), max_slowdown)
        for some in groups.values()
    ]


def _comparable(
    run: Recording, baseline: Sequence[Recording], repeats: bool = False
) -> list[Recording]:
    ranked = [one for one in baseline if (one.rank or 0) == (run.rank or 0)]
    same_job = [one for one in ranked if _job(one) == _job(run)]
    same_name = [] if repeats else [one for one in same_job if one.run == run.run]
    for some in (same_name, same_job):
        if some:
            return sorted(some, key=lambda one: one.start_ns)[-MOST_RUNS:]
    return []


def _job(one: Recording) -> tuple:
    script = one.facts.get("script")
    model = one.facts.get("model") or {}
    return hashed_script(script) if script else None, model.get("parameters")


def _verdict(runs: Sequence[Recording], baseline: Sequence[Recording], limit: float) -> Verdict:
    run = runs[0]
    name = run.run if len(runs) == 1 else f"{run.run} and {len(runs) - 1} like it"
    if not baseline:
        said = f"{name}: no run of the same script, model and rank in the baseline"
        return Verdict(name, run.id, UNKNOWN, said)
    sizes = [_batch(one) for one in (*runs, *baseline)]
    per_sample = None not in sizes and len(set(sizes)) > 1
    found = []
    for measure, of_block in MEASURES.items():
        after, before = (
            [one for one in (_measure(one, of_block, per_sample) for one in some) if one]
            for some in (runs, baseline)
        )
        if not after or not before:
            few = baseline[-1] if after else run
            return Verdict(
                name, run.id, UNKNOWN,
                f"{name}: {few.run} has {few.step_count:,} steps, and "
                f"{WARM_UP + BLOCKS * BLOCK_STEPS} are needed to compare",
            )  # fmt: skip
        found.append((measure, *_bounds(after, before)))
    per = " per sample" if per_sample else ""
    step, mean = (
        _judged((name, run.id), baseline, measure, bounds, limit, per) for measure, *bounds in found
    )
    if mean.outcome == SLOWER != step.outcome:
        return mean
    if step.outcome == WITHIN and mean.outcome == UNRESOLVED:
        spread = f"{mean.low_pct:+.1f} to {mean.high_pct:+.1f} %"
        said = f"{step.sentence}; its mean step scatters too much to judge ({spread})"
        return replace(step, sentence=said)
    return step


def _judged(
    run: tuple[str, str], baseline: Sequence[Recording], measure: str, bounds: Sequence[float],
    limit: float, per: str,
) -> Verdict:  # fmt: skip
    name, id = run
    middle, low, high = (100 * math.expm1(bound) for bound in bounds)
    against = f"{len(baseline)} runs" if len(baseline) > 1 else baseline[0].run
    if against == name:
        against = "the baseline"
    change = f"{percent(abs(middle))} {'slower' if middle >= 0 else 'faster'}"
    shown = f"{name}: its {measure} is {change}{per} than in {against}"
    spread = f"{low:+.1f} to {high:+.1f} %"
    if low > 0 and high >= limit:
        outcome, said = SLOWER, f"{shown} ({spread}); at most {percent(limit)} allowed"
    elif high < limit:
        outcome, said = WITHIN, f"{shown} ({spread}), within {percent(limit)}"
    else:
        outcome = UNRESOLVED
        said = (
            f"{shown}, but both scatter too much to resolve {percent(limit)} ({spread}): "
            "repeated runs on both sides (--repeats), more steps or a quieter machine would"
        )
    return Verdict(
        name, id, outcome, said, measure, round(middle, 3), round(low, 3), round(high, 3),
        tuple(one.id for one in baseline),
    )  # fmt: skip


def _batch(one: Recording) -> float | None:
    size = (one.facts.get("fit") or {}).get("batch_size")
    return float(size) if isinstance(size, (int, float)) and size > 0 else None


def _measure(one: Recording, of_block: Any, per_sample: bool) -> Measure | None:
    """Return a run's level and its error; None if it has too few steps."""
    took = step_seconds(one.steps)
    if len(took) < BLOCKS * BLOCK_STEPS:
        return None
    if per_sample:
        took = took / (_batch(one) or 1.0)
    return measured(took, of_block, _computes(one))


def _computes(one: Recording) -> bool:
    """Return whether steps are mostly the CPU's work; True where that was not sampled."""
    used = one.samples.get("host", {}).get("process_cpu_pct")
    known = used[np.isfinite(used)] if used is not None else ()
    return not len(known) or bool(np.mean(known) >= COMPUTES)


def step_seconds(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the seconds of the steps after the first ones, without those that compiled."""
    compiled = np.asarray(steps["compile_ns"]) > 0
    took = np.asarray(steps["duration_ns"], float)
    use = ~compiled & (took > 0)
    use[:WARM_UP] = False
    return took[use] / 1e9


def measured(took: np.ndarray, of_block: Any, computes: bool = True) -> Measure:
    """Return the level of step times, and the scatter between blocks of neighbouring steps.

    Args:
        computes: whether they are mostly the CPU's work.
    """
    least, share = (PROCESS, RUNS) if computes else (PROCESS_WAITING, RUNS_WAITING)
    blocks = int(np.clip(len(took) // LONG_BLOCK, BLOCKS, MOST_BLOCKS))
    logs = np.log([of_block(block) for block in np.array_split(took, blocks)])
    between = None
    if of_block is _quick:
        low, high = np.percentile(took, [10, 30])
        between = max(float(least), share * math.log(high / low))
    level, scatter = float(logs.mean()), float(logs.std(ddof=1))
    return Measure(level, scatter, blocks, between, len(took))


def _bounds(runs: Sequence[Measure], baseline: Sequence[Measure]) -> tuple[float, float, float]:
    """Return the difference of the logs, and its lower and upper bound.

    What other programs do to a shared machine does not average out over a run: it changes within
    seconds and from hour to hour alike. So the scatter between the blocks of a run, undivided,
    stands for that between runs, and the larger one for both sides: that the machine was calm
    during one of them says nothing of the other. The blocks are few, and by chance this may be far
    too much: how the quick steps of all blocks spread bounds it too (see `RUNS`). Enough runs show
    by themselves how they scatter.
    """
    sides = [np.array([one.level for one in some]) for some in (runs, baseline)]
    change = float(sides[0].mean() - sides[1].mean())
    shares = sum(1 / len(levels) for levels in sides)
    squares = sum(float(((levels - levels.mean()) ** 2).sum()) for levels in sides)
    freedom = sum(len(levels) - 1 for levels in sides)
    between = math.sqrt(squares / max(1, freedom))
    of_runs = _quantile(freedom) * math.sqrt(shares)
    if all(len(levels) >= ENOUGH_RUNS for levels in sides):
        half = of_runs * max(between, PROCESS)
    else:
        half = _of_few(runs, baseline)
        if max(map(len, sides)) >= ENOUGH_RUNS:
            half = max(half, of_runs * between)
    return change, change - half, change + half


def _of_few(runs: Sequence[Measure], baseline: Sequence[Measure]) -> float:
    """Return the bound on the difference of two sides, by what is known within their runs."""
    both = (*runs, *baseline)
    of_blocks = _quantile(sum(one.blocks - 1 for one in both))
    sides = [(len(some), some) for some in (runs, baseline)]
    scatter = [sum(one.scatter**2 for one in some) / n for n, some in sides]
    errors = [sum(one.scatter**2 / one.blocks for one in some) / n**2 for n, some in sides]
    shares = sum(1 / n for n, _ in sides)
    by_blocks = of_blocks * math.sqrt((max(scatter) + PROCESS**2) * shares)
    if any(one.between is None for one in both):
        return by_blocks
    of_spread = _quantile(sum(one.steps for one in both) / 2 / STEPS)
    between = sum(sum((one.between or 0) ** 2 for one in some) / n**2 for n, some in sides)
    return min(by_blocks, math.sqrt(of_spread**2 * between + of_blocks**2 * sum(errors)))


def _quantile(freedom: float) -> float:
    """Return Student's t at 99.5 %, interpolated in the inverse degrees of freedom."""
    inverse = [1 / of for of, _ in _T] + [0.0]
    values = [value for _, value in _T] + [_NORMAL]
    return float(np.interp(1 / max(1.0, freedom), inverse[::-1], values[::-1]))
