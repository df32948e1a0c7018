"""Is a run slower than its baseline? A comparison that knows how much both of them scatter."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.compare import stated_batch
from gpu_util_callback.diagnosis.report_types import Outcome, Slowdown
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TREND, A_TWENTIETH, FOUR_FIFTHS, WARM_UP, Constant, Count
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.redaction import hashed_script
from gpu_util_callback.words import percent, times

BLOCKS = A_TREND  # of neighbouring steps, long enough that what drifts within seconds shows
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
# A process that mostly waits, for a device, depends less on where it was placed.
RUNS_WAITING = Constant(0.35, "the same where steps wait and the CPU is as fast (`CPU_SHARE`): 0.32 to 0.49 was seen")
PROCESS_WAITING = Constant(
    0.007,
    "the same as above where the spread of waiting steps, which may be small, is to say it: 0.007 "
    "to 0.0095 was seen, and with 0.003 5 of 108 unchanged pairs failed",
)
ASSUMED = Count(
    20,
    "degrees of freedom of what the steps say of the differences between runs; those seen have "
    "their own: five runs by chance differ by half as much as others, or by twice that",
)
# Reading a step's logs is always the same work of the framework. Where it takes longer, the CPU is
# slower: another machine, or neighbours on this one that no sample shows.
CPU_SHARE = Constant(
    0.6,
    "of the logarithm of what this work takes longer, times the share of a step in which the "
    "process computes, is what its steps may take longer for the same reason, at most",
)
CPU_ALIKE = Constant(0.03, "the logarithm of that ratio, by chance")
CPU_WORK = (1e-6, 1e-4)  # seconds of it; what takes longer is a wait for the device
MOST_RUNS = 20
# One-sided quantiles of Student's t at 99.5 %, by degrees of freedom: two measures are compared,
# so that a run that has not changed fails in 1 of 100 comparisons at most.
_FREEDOM = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 30, 60)
_T = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.169, 2.947, 2.845, 2.750, 2.660)
_NORMAL = 2.576


def _quick(took: np.ndarray) -> float:
    return float(np.percentile(took, 20))


# What other programs add to some of the steps does not move their 20th percentile; what stalls
# training now and then shows in the mean.
MEASURES: dict[str, Callable[[np.ndarray], float]] = {"step": _quick, "mean step": np.mean}


@dataclass(frozen=True, slots=True)
class StepLevel:
    """A run's log of seconds per step.

    Attributes:
        level: of all its blocks.
        scatter: the standard deviation of the blocks.
        blocks: how many there are.
        between: that of the levels of runs, by the spread of the steps; None = not known.
        logs: log of the seconds that reading a quick step's logs took; None = not known.
        computing: the share of a core that the process used, 1 at most.
    """

    level: float
    scatter: float
    blocks: int
    between: float | None = None
    logs: float | None = None
    computing: float = 1.0


SLOWER: Outcome = "slower"
WITHIN: Outcome = "within"
UNRESOLVED: Outcome = "unresolved"  # too much scatter
UNKNOWN: Outcome = "unknown"  # no comparison
DIFFERENT: Outcome = "not comparable"


def _slowdown(run: str, id: str, outcome: Outcome, sentence: str, baseline: Sequence[Recording] = ()) -> Slowdown:
    return {
        "run": run,
        "id": id,
        "outcome": outcome,
        "sentence": sentence,
        "measure": "",
        "slowdown_pct": None,
        "low_pct": None,
        "high_pct": None,
        "baseline": [recording.id for recording in baseline],
        "failed": False,
        "differences": [],
    }


def slowdowns(
    runs: Sequence[Recording],
    baseline: Sequence[Recording],
    max_slowdown: float,
    repeats: bool = False,
    *,
    fail_unresolved: bool = False,
    allow_different: bool = False,
) -> list[Slowdown]:
    """Compare each run with its baseline: the runs of the same name there, or of the same job.

    A run is slower if it is proven to be slower at all, and a slowdown of `max_slowdown` percent is
    not ruled out; it is within if that is ruled out. Its scatter cannot resolve the rest.

    Args:
        baseline: all recordings of the baseline.
        repeats: runs of one job are repeats of one program: compared together, whatever their
            names.
        fail_unresolved: what cannot be resolved fails, too.
        allow_different: compare runs in spite of their `differences`.
    """
    groups: dict[Any, list[Recording]] = {}
    for run in runs:
        key: Any = run.id
        if repeats:
            set_up = () if allow_different else tuple(_set_up(run).items())
            key = (run.rank or 0, *_job(run), *set_up)
        groups.setdefault(key, []).append(run)
    failing = (SLOWER, UNKNOWN, UNRESOLVED) if fail_unresolved else (SLOWER, UNKNOWN)
    verdicts = []
    for repeats_of_run in groups.values():
        before = _comparable(repeats_of_run[0], baseline, repeats)
        alike = [recording for recording in before if allow_different or not differences(repeats_of_run[0], recording)]
        if before and not alike:
            verdict = _different(repeats_of_run[0], before[-1])
        else:
            verdict = _verdict(repeats_of_run, alike, max_slowdown)
        verdict["failed"] = verdict["outcome"] in failing
        verdicts.append(verdict)
    return verdicts


def differences(run: Recording, baseline: Recording) -> list[str]:
    """Return what both are known to have trained with, and what differs: "GPU: T4, baseline H100".

    GPUs, CPUs, framework, precision and batch size; a newer version is no other framework.
    """
    now, before = _set_up(run), _set_up(baseline)
    return [
        f"{fact}: {value}, baseline {before[fact]}"
        for fact, value in now.items()
        if None not in (value, before[fact]) and value != before[fact]
    ]


def _set_up(run: Recording) -> dict[str, str | None]:
    facts, size = run.facts, stated_batch(run.facts)
    framework, machine = facts.get("framework") or {}, facts.get("machine") or {}
    fit: Mapping[str, Any] = facts.get("fit") or {}
    names = sorted(str(gpu.get("name")) for gpu in facts.get("gpus") or () if gpu.get("used_by_framework"))
    precision = fit.get("mixed_precision")
    cores = [count for count in (machine.get("cpus_allowed"), machine.get("cpu_quota")) if count]
    return {
        "GPU": ", ".join(names) or ("none" if "gpus" in facts else None),
        "CPU": machine.get("cpu"),
        "CPU cores": f"{min(cores):g}" if cores else None,
        "framework": framework.get("backend") or framework.get("name"),
        "precision": precision if isinstance(precision, str) else None,
        "batch size": None if size is None else f"{size:g}",
    }


def _different(run: Recording, baseline: Recording) -> Slowdown:
    differing = differences(run, baseline)
    sentence = f"{run.run}: not comparable with {baseline.run}: {'; '.join(differing)} (--allow-different)"
    return {**_slowdown(run.run, run.id, DIFFERENT, sentence, [baseline]), "differences": differing}


def _comparable(run: Recording, baseline: Sequence[Recording], repeats: bool) -> list[Recording]:
    ranked = [other for other in baseline if (other.rank or 0) == (run.rank or 0)]
    same_job = [other for other in ranked if _job(other) == _job(run)]
    same_name = [] if repeats else [other for other in same_job if other.run == run.run]
    for candidates in (same_name, same_job):
        if candidates:
            return sorted(candidates, key=lambda other: other.start_ns)[-MOST_RUNS:]
    return []


def _job(run: Recording) -> tuple:
    model = run.facts.get("model") or {}
    return hashed_script(run.facts.get("script")), model.get("parameters")


def _verdict(runs: Sequence[Recording], baseline: Sequence[Recording], limit: float) -> Slowdown:
    run = runs[0]
    name = run.run if len(runs) == 1 else f"{run.run} and {len(runs) - 1} like it"
    if not baseline:
        sentence = f"{name}: no run of the same script, model and rank in the baseline"
        return _slowdown(name, run.id, UNKNOWN, sentence)
    sizes = [stated_batch(recording.facts) for recording in (*runs, *baseline)]
    per_sample = None not in sizes and len(set(sizes)) > 1
    frameworks = [recording.facts.get("framework") or {} for recording in (*runs, *baseline)]
    # What its own work in a step depends on.
    same_work = len({tuple(map(of.get, ("name", "version", "keras", "python"))) for of in frameworks}) == 1
    compared = []
    for measure, of_block in MEASURES.items():
        after, before = (
            [level for level in (_measure(run, of_block, per_sample, same_work) for run in side) if level]
            for side in (runs, baseline)
        )
        if not after or not before:
            short_run = baseline[-1] if after else run
            sentence = (
                f"{name}: {short_run.run} has {short_run.step_count:,} steps, and "
                f"{WARM_UP.default + BLOCKS * BLOCK_STEPS} are needed to compare"
            )
            return _slowdown(name, run.id, UNKNOWN, sentence, baseline)
        compared.append((measure, *_bounds(after, before)))
    cpu = _cpu_slower(after, before)
    per = " per sample" if per_sample else ""
    step, mean = (_judged((name, run.id), baseline, measure, bounds, limit, per, cpu) for measure, *bounds in compared)
    if mean["outcome"] == SLOWER != step["outcome"]:
        return mean
    if step["outcome"] == WITHIN and mean["outcome"] == UNRESOLVED:
        spread = f"{mean['low_pct']:+.1f} to {mean['high_pct']:+.1f} %"
        step["sentence"] += f"; its mean step scatters too much to judge ({spread})"
    return step


def _judged(
    run: tuple[str, str],
    baseline: Sequence[Recording],
    measure: str,
    bounds: Sequence[float],
    limit: float,
    per: str,
    cpu: float | None,
) -> Slowdown:
    name, id = run
    middle, low, high = (100 * math.expm1(bound) for bound in bounds)
    against = f"{len(baseline)} runs" if len(baseline) > 1 else baseline[0].run
    if against == name:
        against = "the baseline"
    change = f"{percent(abs(middle))} {'slower' if middle >= 0 else 'faster'}{per} than"
    if middle >= 100:
        change = f"{times(1 + middle / 100)} as long{per} as"
    shown = f"{name}: its {measure} is {change} in {against}"
    spread = f"{low:+.1f} to {high:+.1f} %"
    if low > 0 and high >= limit:
        outcome, sentence = SLOWER, f"{shown} ({spread}); at most {percent(limit)} allowed"
    elif high < limit:
        outcome, sentence = WITHIN, f"{shown} ({spread}), within {percent(limit)}"
    else:
        outcome = UNRESOLVED
        if cpu is not None and abs(cpu) > CPU_ALIKE:
            took = f"{percent(100 * math.expm1(abs(cpu)))} longer in {name if cpu > 0 else against}"
            sentence = (
                f"{shown}, but the CPU seems to have been slower there or then (to read the logs, "
                f"always the same work, took {took}), and {percent(limit)} cannot be resolved "
                f"({spread}): runs on one machine, recorded in turns (--repeats), would"
            )
        else:
            sentence = (
                f"{shown}, but both scatter too much to resolve {percent(limit)} ({spread}): "
                "repeated runs on both sides (--repeats), more steps or a quieter machine would"
            )
    return {
        **_slowdown(name, id, outcome, sentence, baseline),
        "measure": measure,
        "slowdown_pct": round(middle, 3),
        "low_pct": round(low, 3),
        "high_pct": round(high, 3),
    }


def _measure(
    run: Recording, of_block: Callable[[np.ndarray], float], per_sample: bool, same_work: bool
) -> StepLevel | None:
    """Return a run's level and its error; None if it has too few steps.

    Args:
        same_work: the framework's own work is the same in all runs.
    """
    took = step_seconds(run.steps)
    if len(took) < BLOCKS * BLOCK_STEPS:
        return None
    logs = _logs(run, _quick(took)) if same_work else None
    if per_sample:
        took = took / (stated_batch(run.facts) or 1.0)
    cpu = _cpu_pct(run)
    # A process that uses nearly all of a core computes its steps itself.
    measure = measured(took, of_block, cpu >= 100 * FOUR_FIFTHS)
    return replace(measure, logs=logs, computing=min(1.0, cpu / 100))


def _logs(run: Recording, step_s: float) -> float | None:
    """Return the log of the seconds that reading a quick step's logs took, if the CPU did."""
    waits = np.asarray(run.steps.get("gpu_wait_ns", ()), float)[WARM_UP.default :] / 1e9
    measured = waits[np.isfinite(waits)]
    quick = _quick(measured) if len(measured) else 0.0
    least, most = CPU_WORK
    return math.log(quick) if least <= quick <= min(most, A_TWENTIETH * step_s) else None


def _cpu_pct(run: Recording) -> float:
    """Return the percent of a core that the process used; 100 where that was not sampled."""
    used = run.samples.get("host", {}).get("process_cpu_pct")
    sampled = used[np.isfinite(used)] if used is not None else ()
    return float(np.mean(sampled)) if len(sampled) else 100.0


def step_seconds(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the seconds of the steps after the first ones, without those that compiled."""
    compiled = np.asarray(steps["compile_ns"]) > 0
    took = np.asarray(steps["duration_ns"], float)
    use = ~compiled & (took > 0)
    use[: WARM_UP.default] = False
    return took[use] / 1e9


def measured(took: np.ndarray, of_block: Callable[[np.ndarray], float], computes: bool = True) -> StepLevel:
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
    return StepLevel(level, scatter, blocks, between)


def _bounds(runs: Sequence[StepLevel], baseline: Sequence[StepLevel]) -> tuple[float, float, float]:
    """Return the difference of the logs, and its lower and upper bound.

    What other programs do to a shared machine does not average out over a run: it changes within
    seconds and from hour to hour alike. So the scatter between the blocks of a run, undivided,
    stands for that between runs, and the larger one for both sides: that the machine was calm
    during one of them says nothing of the other. The blocks are few, and by chance this may be far
    too much: how the quick steps of all blocks spread bounds it too (see `RUNS`). Where there are
    several runs, how these differ is weighed with it (see `ASSUMED`). Runs on one side alone do
    not narrow the bounds: the other side's only run may be an odd one. What a slower CPU may
    explain widens them on one side, whatever the number of runs.
    """
    sides = (runs, baseline)
    every_run = (*runs, *baseline)
    fewest = min(map(len, sides))
    levels = [np.array([run.level for run in side]) for side in sides]
    change = float(levels[0].mean() - levels[1].mean())
    squares = sum(float(((of - of.mean()) ** 2).sum()) for of in levels)
    freedom = len(every_run) - 2
    by_blocks = max(_mean([run.scatter**2 for run in side]) for side in sides) + PROCESS**2
    spread = [run.between**2 for run in every_run if run.between is not None]
    quantile, assumed = _quantile(sum(run.blocks - 1 for run in every_run)), by_blocks
    if len(spread) == len(every_run):
        errors = _mean([run.scatter**2 / run.blocks for run in every_run])
        assumed = min(by_blocks, _mean(spread) + errors)
    variance = (ASSUMED * assumed + squares) / (ASSUMED + freedom)
    if not spread and fewest >= A_FEW:
        quantile, variance = _quantile(freedom), max(squares / freedom, PROCESS**2)
    half = quantile * math.sqrt(2 * variance / fewest)
    cpu = _cpu_slower(runs, baseline) or 0.0
    explained = CPU_SHARE * max(run.computing for run in every_run) * max(0.0, abs(cpu) - CPU_ALIKE)
    slower, faster = (explained, 0.0) if cpu > 0 else (0.0, explained)
    return change, change - half - slower, change + half + faster


def _cpu_slower(runs: Sequence[StepLevel], baseline: Sequence[StepLevel]) -> float | None:
    """Return the log of how much longer the CPU took for the same work; None = not known."""
    logs = [[run.logs for run in side if run.logs is not None] for side in (runs, baseline)]
    return _mean(logs[0]) - _mean(logs[1]) if all(logs) else None


def _mean(of: Sequence[float]) -> float:
    return sum(of) / len(of)


def _quantile(freedom: float) -> float:
    """Return Student's t at 99.5 %, interpolated in the inverse degrees of freedom."""
    inverse = [*(1 / of for of in _FREEDOM), 0.0]
    values = [*_T, _NORMAL]
    return float(np.interp(1 / max(1.0, freedom), inverse[::-1], values[::-1]))
